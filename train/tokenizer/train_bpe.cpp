// SPDX-License-Identifier: Apache-2.0
// Each distinct word is kept once, with its count. A pair knows the words it was seen in, so a
// merge touches these alone; a queue holds pairs by count, and counts that have changed since are
// found when they come up.
#include "tessera/train/tokenizer/train_bpe.h"

#include "tessera/core/error.h"
#include "tessera/train/tokenizer/splits.h"
#include "tessera/train/tokenizer/tokenizer_file_impl.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <queue>
#include <tuple>

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;

struct Word {
  std::vector<uint32_t> symbols;
  int64_t count;
};
struct Pair {
  int64_t count = 0;
  std::vector<uint32_t> words;  // that have or had it, each at least once
};

class Merger {
 public:
  Merger(std::vector<Word> words, std::vector<std::string>& tokens)
      : words_(std::move(words)), tokens_(tokens) {
    for (uint32_t id = 0; id < tokens_.size(); ++id) ids_.emplace(tokens_[id], id);
    for (uint32_t i = 0; i < words_.size(); ++i) {
      const auto& symbols = words_[i].symbols;
      for (size_t k = 0; k + 1 < symbols.size(); ++k)
        add(symbols[k], symbols[k + 1], i, words_[i].count);
    }
    for (const auto& [key, pair] : pairs_) queue_.emplace(pair.count, ~key);
  }

  // Merges until there are `most` tokens or no pair is left. Returns the pairs in order.
  std::vector<std::pair<uint32_t, uint32_t>> run(size_t most) {
    std::vector<std::pair<uint32_t, uint32_t>> merges;
    while (tokens_.size() < most && !queue_.empty()) {
      const auto [count, inverted] = queue_.top();
      queue_.pop();
      const uint64_t key = ~inverted;
      const auto at = pairs_.find(key);
      if (at == pairs_.end()) continue;
      if (at->second.count != count) {  // changed since it was queued
        if (at->second.count > 0) queue_.emplace(at->second.count, inverted);
        else pairs_.erase(at);
        continue;
      }
      const std::vector<uint32_t> words = std::move(at->second.words);
      pairs_.erase(at);
      const auto left = static_cast<uint32_t>(key >> 32), right = static_cast<uint32_t>(key);
      merges.emplace_back(left, right);
      merge(left, right, words);
    }
    return merges;
  }

 private:
  Pair& add(uint32_t left, uint32_t right, uint32_t word, int64_t count) {
    Pair& pair = pairs_[uint64_t{left} << 32 | right];
    pair.count += count;
    if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
    return pair;
  }
  void take(uint32_t left, uint32_t right, int64_t count) {
    const auto at = pairs_.find(uint64_t{left} << 32 | right);
    if (at != pairs_.end()) at->second.count -= count;
  }

  void merge(uint32_t left, uint32_t right, const std::vector<uint32_t>& words) {
    std::string token = tokens_[left] + tokens_[right];
    const auto [known, fresh] =
        ids_.emplace(std::move(token), static_cast<uint32_t>(tokens_.size()));
    const uint32_t whole = known->second;
    if (fresh) tokens_.push_back(known->first);
    std::vector<uint64_t> made;
    for (const uint32_t number : words) {
      auto& [symbols, count] = words_[number];
      size_t to = 0;
      for (size_t from = 0; from < symbols.size(); ++from, ++to) {
        if (symbols[from] != left || from + 1 == symbols.size() || symbols[from + 1] != right) {
          symbols[to] = symbols[from];
          continue;
        }
        ++from;
        symbols[to] = whole;
        if (to > 0) {
          take(symbols[to - 1], left, count);
          (void)add(symbols[to - 1], whole, number, count);
          made.push_back(uint64_t{symbols[to - 1]} << 32 | whole);
        }
        if (from + 1 < symbols.size()) {
          take(right, symbols[from + 1], count);
          (void)add(whole, symbols[from + 1], number, count);
          made.push_back(uint64_t{whole} << 32 | symbols[from + 1]);
        }
      }
      symbols.resize(to);
    }
    std::ranges::sort(made);
    made.erase(std::unique(made.begin(), made.end()), made.end());
    for (const uint64_t key : made) {
      const auto at = pairs_.find(key);
      if (at != pairs_.end() && at->second.count > 0) queue_.emplace(at->second.count, ~key);
    }
  }

  std::vector<Word> words_;
  std::vector<std::string>& tokens_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::unordered_map<uint64_t, Pair> pairs_;
  // The highest count first, then the lowest ids: count, ~(left << 32 | right).
  std::priority_queue<std::pair<int64_t, uint64_t>> queue_;
};

Json mark_json(const std::string& content, size_t id) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

}  // namespace

BpeTrainer::BpeTrainer(const BpeTraining& options) : options_(options) {
  const NamedSplit* split = find_split(options.split);
  if (!split) fail<ValueError>("tokenizer train", "split '", options.split, "' is not known");
  if (options.vocabulary < 258 || options.vocabulary > int64_t{1} << 24) {
    fail<ValueError>("tokenizer train", "vocabulary ", options.vocabulary,
                     ", expected 258 (the bytes and two marks) to ", int64_t{1} << 24);
  }
  for (const char* pattern : split->patterns)
    pre_tokenizer_.add(SplitStage{Pattern(pattern, options.split)});
}

std::vector<std::string> BpeTrainer::split_names() {
  std::vector<std::string> names;
  for (const NamedSplit& split : named_splits()) names.emplace_back(split.name);
  return names;
}

void BpeTrainer::add(std::string_view document) {
  pre_tokenizer_.split(document, true, buffers_);
  std::string key;
  for (const std::string_view word : buffers_.words) ++counts_[key.assign(word)];
}

namespace {

// The file of a tokenizer with these tokens and merges, as `tokenizers` writes it.
Json tokenizer_json(const BpeTraining& options, const std::vector<std::string>& tokens,
                    const std::vector<std::pair<uint32_t, uint32_t>>& merges) {
  Json stages = Json::array();
  for (const char* pattern : find_split(options.split)->patterns) {
    stages.push_back({{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}});
  }
  const Json byte_level{{"type", "ByteLevel"},
                        {"add_prefix_space", false},
                        {"trim_offsets", true},
                        {"use_regex", false}};
  stages.push_back(byte_level);
  Json vocabulary = Json::object(), pairs = Json::array();
  Json::object_t::Container& members = vocabulary.get_ref<Json::object_t&>();  // its [] is linear
  for (size_t id = 0; id < tokens.size(); ++id) members.emplace_back(tokens[id], id);
  for (const auto& [left, right] : merges) pairs.push_back({tokens[left], tokens[right]});
  const auto mark_part = [](const std::string& id) -> Json {
    return {{"SpecialToken", {{"id", id}, {"type_id", 0}}}};
  };
  const auto sequence = [](const char* id) -> Json {
    return {{"Sequence", {{"id", id}, {"type_id", 0}}}};
  };
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", {mark_json(options.begin, 0), mark_json(options.end, 1)}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", stages}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", {mark_part(options.begin), sequence("A")}},
            {"pair",
             {mark_part(options.begin), sequence("A"), mark_part(options.begin), sequence("B")}},
            {"special_tokens",
             {{options.begin,
               {{"id", options.begin},
                {"ids", Json::array({0})},
                {"tokens", Json::array({options.begin})}}}}}}},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocabulary},
            {"merges", pairs}}}};
}

}  // namespace

std::vector<TokenizerFile> BpeTrainer::train() const {
  // Ids: the marks, the bytes in the order of the characters that stand for them, then merges.
  const auto characters = byte_characters();
  std::array<uint32_t, 256> bytes{};
  for (uint32_t b = 0; b < 256; ++b) bytes[b] = b;
  std::ranges::sort(bytes, {},
                    [&](uint32_t b) { return unicode::character_at(characters[b], 0).point; });
  std::vector<std::string> tokens{options_.begin, options_.end};
  std::array<uint32_t, 256> id_of{};
  for (const uint32_t b : bytes) {
    id_of[b] = static_cast<uint32_t>(tokens.size());
    tokens.push_back(characters[b]);
  }
  std::vector<std::pair<std::string_view, int64_t>> sorted(counts_.begin(), counts_.end());
  std::ranges::sort(sorted);
  std::vector<Word> words;
  for (const auto& [text, count] : sorted) {
    words.push_back({{}, count});
    for (const char c : text) words.back().symbols.push_back(id_of[static_cast<unsigned char>(c)]);
  }
  const auto merges =
      Merger(std::move(words), tokens).run(static_cast<size_t>(options_.vocabulary));

  const Json json = tokenizer_json(options_, tokens, merges);
  const Json config{{"bos_token", options_.begin},
                    {"eos_token", options_.end},
                    {"tokenizer_class", "PreTrainedTokenizerFast"}};
  return {{std::string(kTokenizerJson), json.dump(1) + '\n'},
          {std::string(kTokenizerConfig), config.dump(1) + '\n'}};
}

}  // namespace tessera::train
