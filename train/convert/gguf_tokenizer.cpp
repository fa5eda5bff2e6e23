// SPDX-License-Identifier: Apache-2.0
// Of the tokenizer's files, which opening it has checked. Tokens are in the characters that stand
// for bytes, as the files have them; merges are pairs of them with a space between.
#include "tessera/train/convert/gguf_tokenizer.h"

#include "tessera/nn/io/json_impl.h"
#include "tessera/train/tokenizer/splits.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;

enum TokenType : int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

struct Parts {
  Json vocabulary = Json::object(), added = Json::array();
  std::vector<std::string> merges, patterns;
};

// The patterns that split text, in their order.
void find_patterns(const Json& part, std::vector<std::string>& patterns) {
  if (!part.is_object()) return;
  if (part.value("type", "") == "Sequence") {
    for (const Json& inner : part.at("pretokenizers")) find_patterns(inner, patterns);
  } else if (part.value("type", "") == "Split" && part.at("pattern").contains("Regex")) {
    patterns.push_back(part.at("pattern").at("Regex").get<std::string>());
  } else if (part.value("type", "") == "ByteLevel" && part.value("use_regex", true)) {
    patterns.emplace_back(byte_level_pattern());
  }
}

std::optional<Parts> parts_of(std::span<const TokenizerFile> files) {
  const auto text_of = [&](std::string_view name) -> const std::string* {
    const auto at = std::ranges::find(files, name, &TokenizerFile::name);
    return at == files.end() ? nullptr : &at->bytes;
  };
  Parts parts;
  if (const std::string* text = text_of("tokenizer.json")) {
    const Json json = io::parse_json(*text).value;
    const Json& model = json.at("model");
    if (model.value("byte_fallback", false)) return {};
    parts.vocabulary = model.at("vocab");
    parts.added = json.value("added_tokens", Json::array());
    for (const Json& merge : model.at("merges")) {
      parts.merges.push_back(merge.is_string()
                                 ? merge.get<std::string>()
                                 : merge[0].get<std::string>() + ' ' + merge[1].get<std::string>());
    }
    find_patterns(json.value("pre_tokenizer", Json()), parts.patterns);
    return parts;
  }
  const std::string *vocabulary = text_of("vocab.json"), *merges = text_of("merges.txt");
  if (!vocabulary || !merges) return {};
  parts.vocabulary = io::parse_json(*vocabulary).value;
  std::istringstream lines(*merges);
  for (std::string line; std::getline(lines, line);)
    if (!line.empty() && !line.starts_with("#version")) parts.merges.push_back(line);
  parts.patterns = {byte_level_pattern()};
  return parts;
}

std::string_view split_of(const std::vector<std::string>& patterns) {
  for (const NamedSplit& split : named_splits())
    if (std::ranges::equal(split.patterns, patterns)) return split.gguf;
  return {};
}

}  // namespace

std::vector<GgufKey> gguf_tokenizer(const Tokenizer& tokenizer, int64_t vocabulary) {
  const std::optional<Parts> parts = parts_of(tokenizer.files());
  const std::string_view split = parts ? split_of(parts->patterns) : "";
  if (split.empty()) return {};
  std::vector<std::string> tokens(static_cast<size_t>(vocabulary));
  std::vector<int32_t> types(static_cast<size_t>(vocabulary), kUnused);
  const auto set = [&](int64_t id, const std::string& text, TokenType type) {
    if (id < 0 || id >= vocabulary) return;
    tokens[static_cast<size_t>(id)] = text;
    types[static_cast<size_t>(id)] = type;
  };
  for (const auto& [text, id] : parts->vocabulary.items()) set(id.get<int64_t>(), text, kNormal);
  for (const Json& token : parts->added)
    set(token.at("id").get<int64_t>(), token.at("content").get<std::string>(),
        token.value("special", false) ? kControl : kUserDefined);
  for (int64_t id = 0; id < vocabulary; ++id) {
    if (types[static_cast<size_t>(id)] == kUnused)
      tokens[static_cast<size_t>(id)] = concat("[PAD", id, ']');
    else if (tokenizer.is_mark(id)) types[static_cast<size_t>(id)] = kControl;
  }
  std::vector<GgufKey> keys{{"tokenizer.ggml.model", kGgufByteLevel},
                            {"tokenizer.ggml.pre", std::string(split)},
                            {"tokenizer.ggml.tokens", std::move(tokens)},
                            {"tokenizer.ggml.token_type", std::move(types)},
                            {"tokenizer.ggml.merges", parts->merges}};
  const auto mark = [&](const char* name, int64_t id) {
    if (id >= 0) keys.push_back({name, static_cast<uint32_t>(id)});
  };
  mark("tokenizer.ggml.bos_token_id", tokenizer.begin_id());
  mark("tokenizer.ggml.eos_token_id", tokenizer.end_id());
  return keys;
}

}  // namespace tessera::train
