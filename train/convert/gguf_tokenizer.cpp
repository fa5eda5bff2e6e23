// SPDX-License-Identifier: Apache-2.0
// Of the tokenizer's files, which opening it has checked. Tokens are written as the files have
// them: in the characters that stand for bytes, or in SentencePiece's with U+2581 for a space.
//
// llama.cpp's tokenizers of SentencePiece know no merges. They join any two neighbours that make a
// token, those first whose token has the highest score. So merges are expressed by scores if each
// way to make a token is a merge, and all merges of a token follow each other.
#include "tessera/train/convert/gguf_tokenizer.h"

#include "tessera/nn/io/json_impl.h"
#include "tessera/train/tokenizer/splits.h"
#include "tessera/train/unicode/unicode.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;

enum TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

constexpr const char* kGgufScored = "llama";  // llama.cpp's name of tokenizers with scores
constexpr const char* kSpaceMark = "\u2581";

struct Parts {
  Json vocabulary = Json::object(), added = Json::array();
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<std::string> patterns;
  Json of_sentencepiece = {};  // the whole tokenizer.json, if characters fall back to bytes
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

std::pair<std::string, std::string> pair_of(const std::string& merge) {
  const size_t space = merge.find(' ');
  return {merge.substr(0, space), merge.substr(space + 1)};
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
    if (model.value("byte_fallback", false)) parts.of_sentencepiece = json;
    parts.vocabulary = model.at("vocab");
    parts.added = json.value("added_tokens", Json::array());
    for (const Json& merge : model.at("merges")) {
      if (merge.is_string()) parts.merges.push_back(pair_of(merge.get<std::string>()));
      else parts.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    }
    find_patterns(json.value("pre_tokenizer", Json()), parts.patterns);
    return parts;
  }
  const std::string *vocabulary = text_of("vocab.json"), *merges = text_of("merges.txt");
  if (!vocabulary || !merges) return {};
  parts.vocabulary = io::parse_json(*vocabulary).value;
  std::istringstream lines(*merges);
  for (std::string line; std::getline(lines, line);)
    if (!line.empty() && !line.starts_with("#version")) parts.merges.push_back(pair_of(line));
  parts.patterns = {byte_level_pattern()};
  return parts;
}

std::string_view split_of(const std::vector<std::string>& patterns) {
  for (const NamedSplit& split : named_splits())
    if (std::ranges::equal(split.patterns, patterns)) return split.gguf;
  return {};
}

// Of a byte that no character has: `<0x0A>`.
bool is_byte(std::string_view token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
}

// Whether texts begin with a space that is put before them. None: llama.cpp would prepare texts in
// another way than this file.
std::optional<bool> space_prefix(const Json& file) {
  const Json& model = file.at("model");
  const Json normalizer = file.value("normalizer", Json()),
             pre = file.value("pre_tokenizer", Json());
  const auto prepends = [](const Json& n) {
    return n.value("type", "") == "Prepend" && n.value("prepend", "") == kSpaceMark;
  };
  const auto replaces = [](const Json& n) {
    return n.value("type", "") == "Replace" && n.at("pattern").value("String", "") == " " &&
           n.value("content", "") == kSpaceMark;
  };
  if (model.value("ignore_merges", false)) return {};
  if (pre.is_null() && normalizer.is_object()) {
    if (replaces(normalizer)) return false;
    if (normalizer.value("type", "") != "Sequence") return {};
    const Json& all = normalizer.at("normalizers");
    if (all.size() == 2 && prepends(all[0]) && replaces(all[1])) return true;
    return {};
  }
  if (!normalizer.is_null() || !pre.is_object() || pre.value("type", "") != "Metaspace" ||
      pre.value("split", true) || pre.value("replacement", kSpaceMark) != kSpaceMark)
    return {};
  const char* older = pre.value("add_prefix_space", true) ? "always" : "never";
  return pre.value("prepend_scheme", older) != "never";
}

// The score of each token by which llama.cpp makes these merges, 0 for those of no merge. Empty:
// there are none.
std::vector<float> scores_of(const Parts& parts, size_t vocabulary) {
  std::map<std::string, size_t, std::less<>> ids;
  for (const auto& [text, id] : parts.vocabulary.items()) ids.emplace(text, id.get<size_t>());
  std::vector<float> scores(vocabulary);
  std::set<std::pair<std::string_view, std::string_view>> known;
  size_t last = vocabulary;
  float score = 0;
  for (const auto& [left, right] : parts.merges) {
    const auto whole = ids.find(left + right);
    if (whole == ids.end() || whole->second >= vocabulary) return {};
    if (whole->second != last) {
      last = whole->second;
      if (scores[last] != 0) return {};  // other merges lie between those of this token
      scores[last] = --score;
    }
    known.emplace(left, right);
  }
  std::set<size_t> added;
  for (const Json& token : parts.added) added.insert(token.at("id").get<size_t>());
  const auto stands_alone = [&](std::string_view part) {
    return unicode::character_at(part, 0).bytes == part.size() || ids.contains(part);
  };
  for (const auto& [text, id] : ids) {
    if (text.empty() || added.contains(id) || is_byte(text)) continue;
    const std::string_view whole = text;
    for (size_t at = 0; (at += unicode::character_at(whole, at).bytes) < whole.size();) {
      const auto left = whole.substr(0, at), right = whole.substr(at);
      if (stands_alone(left) && stands_alone(right) && !known.contains({left, right})) return {};
    }
  }
  return scores;
}

// The id of the token for what no token stands for; -1: none.
int64_t unknown_of(const Parts& parts) {
  const Json& model = parts.of_sentencepiece.at("model");
  if (!model.contains("unk_token") || model.at("unk_token").is_null()) return -1;
  return parts.vocabulary.at(model.at("unk_token").get<std::string>()).get<int64_t>();
}

}  // namespace

GgufMarks gguf_marks(const SpecialTokensConfig& said, const Tokenizer& tokenizer,
                     int64_t answer_end) {
  const SpecialTokensConfig all = special_tokens_to_write(said, &tokenizer, answer_end, false);
  const auto id = [](const std::string& one, const std::string& other) {
    for (const std::string* text : {&one, &other}) {
      const Json value = text->empty() ? Json() : io::parse_json(*text).value;
      if (value.is_number_integer()) return value.get<int64_t>();
    }
    return int64_t{-1};
  };
  GgufMarks marks{.begin = tokenizer.begin_id(), .pad = id(all.config.pad, all.generation.pad)};
  if (marks.begin < 0) marks.begin = id(all.config.begin, all.generation.begin);
  std::vector<int64_t> ends = end_ids(said, tokenizer, answer_end);
  const auto take = [&](int64_t& mark, int64_t wanted) {
    if (ends.empty()) return;
    const auto at = std::ranges::find(ends, wanted);
    const auto taken = at == ends.end() ? ends.begin() : at;
    mark = *taken;
    ends.erase(taken);
  };
  take(marks.end, tokenizer.end_id());
  take(marks.end_of_turn, answer_end);
  take(marks.end_of_message, -1);
  marks.left_out = std::ssize(ends);
  return marks;
}

std::vector<GgufKey> gguf_tokenizer(const Tokenizer& tokenizer, int64_t vocabulary,
                                    const GgufMarks& marks) {
  const std::optional<Parts> parts = parts_of(tokenizer.files());
  if (!parts) return {};
  const bool scored = !parts->of_sentencepiece.is_null();
  const std::string_view split = scored ? "default" : split_of(parts->patterns);
  const std::optional<bool> prefix = scored ? space_prefix(parts->of_sentencepiece) : false;
  std::vector<float> scores;
  if (scored && prefix) scores = scores_of(*parts, static_cast<size_t>(vocabulary));
  if (split.empty() || (scored && scores.empty())) return {};
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
    std::string& token = tokens[static_cast<size_t>(id)];
    int32_t& type = types[static_cast<size_t>(id)];
    if (type == kUnused) token = concat("[PAD", id, ']');
    else if (tokenizer.is_mark(id)) type = kControl;
    else if (scored && is_byte(token)) type = kByte;
  }
  const int64_t unknown = scored ? unknown_of(*parts) : -1;
  if (unknown >= 0 && unknown < vocabulary) types.at(static_cast<size_t>(unknown)) = kUnknown;
  std::vector<GgufKey> keys{{"tokenizer.ggml.model", scored ? kGgufScored : kGgufByteLevel},
                            {"tokenizer.ggml.pre", std::string(split)},
                            {"tokenizer.ggml.tokens", std::move(tokens)},
                            {"tokenizer.ggml.token_type", std::move(types)}};
  if (scored) {
    keys.push_back({"tokenizer.ggml.scores", std::move(scores)});
    keys.push_back({"tokenizer.ggml.add_space_prefix", *prefix});
    // Where these are not said, llama.cpp puts token 1 before a text, whatever it is.
    keys.push_back({"tokenizer.ggml.add_bos_token", tokenizer.begins_texts()});
    keys.push_back({"tokenizer.ggml.add_eos_token", false});
  } else {
    std::vector<std::string> merges;
    for (const auto& [left, right] : parts->merges) merges.push_back(concat(left, ' ', right));
    keys.push_back({"tokenizer.ggml.merges", std::move(merges)});
  }
  const auto mark = [&](const char* name, int64_t id) {
    if (id >= 0) keys.push_back({name, static_cast<uint32_t>(id)});
  };
  mark("tokenizer.ggml.bos_token_id", marks.begin);
  mark("tokenizer.ggml.eos_token_id", marks.end);
  mark("tokenizer.ggml.eot_token_id", marks.end_of_turn);
  mark("tokenizer.ggml.eom_token_id", marks.end_of_message);
  mark("tokenizer.ggml.padding_token_id", marks.pad);
  mark("tokenizer.ggml.unknown_token_id", unknown);
  return keys;
}

}  // namespace tessera::train
