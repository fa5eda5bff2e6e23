// SPDX-License-Identifier: Apache-2.0
// Of what the tokenizer's reader makes of its files. Tokens are written as the files have
// them: in the characters that stand for bytes, or in SentencePiece's with U+2581 for a space.
//
// llama.cpp's tokenizers of SentencePiece know no merges. They join any two neighbours that make a
// token, those first whose token has the highest score. So merges are expressed by scores if each
// way to make a token is a merge, and all merges of a token follow each other.
#include "tessera/train/exchange/gguf_tokenizer.h"

#include "tessera/nn/io/json_impl.h"
#include "tessera/train/tokenizer/splits.h"
#include "tessera/train/tokenizer/tokenizer_file_impl.h"
#include "tessera/train/unicode/unicode.h"

#include <algorithm>
#include <optional>
#include <set>
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

struct Parts : BpeParts {
  Json of_sentencepiece = {};  // the whole tokenizer.json, if characters fall back to bytes
};

std::optional<Parts> parts_of(std::span<const TokenizerFile> files) {
  if (files.empty()) return {};
  Parts parts{parse_tokenizer_files(files)};
  const auto whole = std::ranges::find(files, kTokenizerJson, &TokenizerFile::name);
  if (parts.model.byte_fallback && whole != files.end())
    parts.of_sentencepiece = io::parse_json(whole->bytes).value;
  return parts;
}

std::string_view split_of(const Parts& parts) {
  if (!parts.model.of_bytes || parts.other_steps) return {};
  for (const NamedSplit& split : named_splits())
    if (std::ranges::equal(split.patterns, parts.splits)) return split.gguf;
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
  std::set<std::string_view> names(parts.names.begin(), parts.names.end());
  std::vector<float> scores(vocabulary);
  std::set<std::pair<std::string_view, std::string_view>> known;
  size_t last = vocabulary;
  float score = 0;
  for (const auto& [left, right, whole] : parts.model.merges) {
    if (whole >= vocabulary) return {};
    if (whole != last) {
      last = whole;
      if (scores[last] != 0) return {};  // other merges lie between those of this token
      scores[last] = --score;
    }
    known.emplace(parts.names[left], parts.names[right]);
  }
  std::set<std::string_view> added;
  for (const AddedToken& token : parts.added) added.insert(token.content);
  const auto stands_alone = [&](std::string_view part) {
    return unicode::character_at(part, 0).bytes == part.size() || names.contains(part);
  };
  for (const std::string_view whole : names) {
    if (whole.empty() || added.contains(whole) || is_byte(whole)) continue;
    for (size_t at = 0; (at += unicode::character_at(whole, at).bytes) < whole.size();) {
      const auto left = whole.substr(0, at), right = whole.substr(at);
      if (stands_alone(left) && stands_alone(right) && !known.contains({left, right})) return {};
    }
  }
  return scores;
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
  const std::string_view split = scored ? "default" : split_of(*parts);
  const std::optional<bool> prefix = scored ? space_prefix(parts->of_sentencepiece) : false;
  const auto size = static_cast<size_t>(vocabulary);
  std::vector<float> scores;
  if (scored && prefix) scores = scores_of(*parts, size);
  if (split.empty() || (scored && scores.empty())) return {};
  std::vector<std::string> tokens = parts->names;
  tokens.resize(size);
  std::vector<int32_t> types(size, kNormal);
  const auto set = [&](int64_t id, TokenType type) {
    if (id >= 0 && id < vocabulary) types[static_cast<size_t>(id)] = type;
  };
  for (const AddedToken& t : parts->added) set(t.id, t.special ? kControl : kUserDefined);
  for (size_t id = 0; id < size; ++id) {
    if (tokens[id].empty()) types[id] = kUnused, tokens[id] = concat("[PAD", id, ']');
    else if (scored && types[id] != kControl && is_byte(tokens[id])) types[id] = kByte;
  }
  const int64_t unknown = scored ? parts->model.unknown : -1;
  set(unknown, kUnknown);
  std::vector<GgufKey> keys{{"tokenizer.ggml.model", scored ? kGgufScored : kGgufByteLevel},
                            {"tokenizer.ggml.pre", std::string(split)},
                            {"tokenizer.ggml.tokens", std::move(tokens)},
                            {"tokenizer.ggml.token_type", std::move(types)}};
  if (scored) {
    keys.push_back({"tokenizer.ggml.scores", std::move(scores)});
    keys.push_back({"tokenizer.ggml.add_space_prefix", *prefix});
  } else {
    std::vector<std::string> merges;
    for (const BpeModel::Merge& merge : parts->model.merges)
      merges.push_back(concat(parts->names[merge.left], ' ', parts->names[merge.right]));
    keys.push_back({"tokenizer.ggml.merges", std::move(merges)});
  }
  // Where these are not said, llama.cpp puts a token before a text, whatever it is: 1 in those with
  // scores, 11 if text is split as Llama 3 does.
  keys.push_back({"tokenizer.ggml.add_bos_token", tokenizer.begins_texts()});
  keys.push_back({"tokenizer.ggml.add_eos_token", false});
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
