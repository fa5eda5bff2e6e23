// SPDX-License-Identifier: Apache-2.0
// Tokenizers with scores: the way of llama.cpp to merge, as its sources have it, gives from the
// keys of a GGUF file the ids of the tokenizer that they were made of.
#include "tessera/train/exchange/gguf_tokenizer.h"

#include "tessera/nn/io/json_impl.h"
#include "tessera/train/tokenizer/splits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;

const std::string kSpaceMark = "\u2581";

template <class T> T key(const std::vector<GgufKey>& keys, const std::string& name) {
  const auto at = std::ranges::find(keys, "tokenizer.ggml." + name, &GgufKey::name);
  if (at == keys.end()) {
    ADD_FAILURE() << "there is no " << name;
    return {};
  }
  return std::get<T>(at->value);
}

std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> all;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) all.emplace_back();
    all.back() += c;
  }
  return all;
}

class ScoredTokenizer : public testing::Test {
 protected:
  // Every way to make a token is a merge. No token has a letter twice, so that no two places of a
  // text where the same token can be made overlap: there the order of equal scores would count.
  ScoredTokenizer() {
    for (const char* mark : {"<unk>", "<s>", "</s>"}) add(mark);
    for (int byte = 0; byte < 256; ++byte) {
      constexpr const char* kDigits = "0123456789ABCDEF";
      add(concat("<0x", kDigits[byte >> 4], kDigits[byte & 15], '>'));
    }
    std::vector<std::string> parts{kSpaceMark};
    for (char c = 'a'; c <= 'l'; ++c) parts.emplace_back(1, c);
    for (const std::string& part : parts) add(part);
    for (int tries = 0; tries < 300; ++tries) {
      const std::string whole = pick(parts) + pick(parts);
      auto letters = characters(whole);
      std::ranges::sort(letters);
      if (std::ranges::adjacent_find(letters) != letters.end() || vocabulary_.contains(whole))
        continue;
      add(whole);
      parts.push_back(whole);
      made_.push_back(whole);
    }
    for (const std::string& whole : made_) {
      const size_t first = merges_.size();
      std::string left;
      for (const std::string& letter : characters(whole)) {
        left += letter;
        const std::string right = whole.substr(left.size());
        if (vocabulary_.contains(left) && vocabulary_.contains(right))
          merges_.push_back(Json::array({left, right}));
      }
      std::shuffle(merges_.begin() + static_cast<std::ptrdiff_t>(first), merges_.end(), random_);
    }
    file_ = {{"added_tokens", Json::array()},
             {"normalizer",
              {{"type", "Sequence"},
               {"normalizers",
                {{{"type", "Prepend"}, {"prepend", kSpaceMark}},
                 {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceMark}}}}}},
             {"pre_tokenizer", nullptr},
             {"decoder",
              {{"type", "Sequence"},
               {"decoders",
                {{{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}},
                 {{"type", "ByteFallback"}},
                 {{"type", "Fuse"}}}}}},
             {"model",
              {{"type", "BPE"},
               {"unk_token", "<unk>"},
               {"fuse_unk", true},
               {"byte_fallback", true},
               {"vocab", vocabulary_}}}};
    for (int id = 0; id < 3; ++id) {
      file_["added_tokens"].push_back(
          {{"id", id}, {"content", std::vector{"<unk>", "<s>", "</s>"}[id]}, {"special", true}});
    }
  }
  void add(const std::string& token) {
    const size_t id = vocabulary_.size();
    vocabulary_[token] = id;
  }
  std::string pick(const std::vector<std::string>& of) { return of[random_() % of.size()]; }
  [[nodiscard]] std::shared_ptr<const Tokenizer> tokenizer() const {
    Json file = file_;
    file["model"]["merges"] = merges_;
    return make_tokenizer({{"tokenizer.json", file.dump()}});
  }
  [[nodiscard]] std::vector<GgufKey> keys() const {
    return gguf_tokenizer(*tokenizer(), std::ssize(vocabulary_) + 2,
                          gguf_marks({}, *tokenizer(), -1));
  }
  [[nodiscard]] std::string text() {
    std::string text;
    for (int n = static_cast<int>(random_() % 40); n > 0; --n) {
      const size_t kind = random_() % 8;
      text += kind == 0 ? " " : kind == 1 ? "\u00e9" : kind == 2 ? "\n" : pick(made_);
    }
    for (size_t at = 0; (at = text.find(kSpaceMark, at)) != text.npos;)
      text.replace(at, kSpaceMark.size(), " ");
    return text;
  }

  const unsigned seed_ = std::random_device{}();
  std::mt19937 random_{seed_};
  Json vocabulary_ = Json::object(), file_;
  std::vector<Json> merges_;
  std::vector<std::string> made_;  // in the order of their merges
};

// The two neighbours whose token has the highest score are joined, the leftmost of equal ones.
std::vector<int32_t> merged_by_score(const std::vector<GgufKey>& keys, std::string text) {
  const auto tokens = key<std::vector<std::string>>(keys, "tokens");
  const auto scores = key<std::vector<float>>(keys, "scores");
  std::map<std::string, size_t> ids;
  for (size_t id = 0; id < tokens.size(); ++id) ids[tokens[id]] = id;
  if (key<bool>(keys, "add_space_prefix") && !text.empty()) text = ' ' + text;
  std::string marked;
  for (const char c : text) marked += c == ' ' ? kSpaceMark : std::string(1, c);
  std::vector<std::string> symbols = characters(marked);
  while (true) {
    size_t best = symbols.size();
    float highest = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto whole = ids.find(symbols[i] + symbols[i + 1]);
      if (whole == ids.end()) continue;
      const float score = scores[whole->second];
      if (best == symbols.size() || score > highest) best = i, highest = score;
    }
    if (best == symbols.size()) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  std::vector<int32_t> out;
  for (const std::string& symbol : symbols) {
    if (const auto at = ids.find(symbol); at != ids.end()) {
      out.push_back(static_cast<int32_t>(at->second));
      continue;
    }
    for (const char c : symbol) out.push_back(3 + static_cast<unsigned char>(c));
  }
  return out;
}

TEST_F(ScoredTokenizer, MergesOfLlamaCppGiveTheSameIds) {
  SCOPED_TRACE(seed_);
  const auto ours = tokenizer();
  const std::vector<GgufKey> all = keys();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(key<std::string>(all, "model"), "llama");
  EXPECT_TRUE(key<bool>(all, "add_space_prefix"));
  EXPECT_EQ(key<uint32_t>(all, "unknown_token_id"), 0u);
  EXPECT_FALSE(key<bool>(all, "add_bos_token"));
  EXPECT_FALSE(key<bool>(all, "add_eos_token"));
  const auto types = key<std::vector<int32_t>>(all, "token_type");
  EXPECT_EQ((std::vector<int32_t>(types.begin(), types.begin() + 4)),
            (std::vector<int32_t>{2, 3, 3, 6}));
  EXPECT_EQ((std::vector<int32_t>(types.end() - 3, types.end())), (std::vector<int32_t>{1, 5, 5}));
  for (int trial = 0; trial < 300; ++trial) {
    const std::string some = text();
    std::vector<int32_t> ids;
    if (!some.empty()) ours->append(some, ids);
    EXPECT_EQ(merged_by_score(all, some), ids) << '\'' << some << '\'';
  }
}

TEST_F(ScoredTokenizer, ABeginTokenIsAddedWhereThereIsOne) {
  const auto mark = [](const char* name) { return Json{{"SpecialToken", {{"id", name}}}}; };
  file_["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {mark("<s>"), {{"Sequence", {{"id", "A"}}}}, mark("</s>")}}};
  const std::vector<GgufKey> all = keys();
  EXPECT_TRUE(key<bool>(all, "add_bos_token"));
  EXPECT_EQ(key<uint32_t>(all, "bos_token_id"), 1u);
  EXPECT_FALSE(key<bool>(all, "add_eos_token"));  // generation goes on where the text ends
}

TEST_F(ScoredTokenizer, OtherWaysToPrepareATextAreKnownOrRefused) {
  const Json metaspace = {{"type", "Metaspace"},
                          {"replacement", kSpaceMark},
                          {"prepend_scheme", "first"},
                          {"split", false}};
  const Json replace = file_["normalizer"]["normalizers"][1];
  file_["normalizer"] = replace;
  EXPECT_FALSE(key<bool>(keys(), "add_space_prefix"));
  file_["normalizer"] = nullptr;
  file_["pre_tokenizer"] = metaspace;
  EXPECT_TRUE(key<bool>(keys(), "add_space_prefix"));
  file_["pre_tokenizer"]["prepend_scheme"] = "never";
  EXPECT_FALSE(key<bool>(keys(), "add_space_prefix"));
  file_["pre_tokenizer"]["split"] = true;
  EXPECT_TRUE(keys().empty());
  file_["pre_tokenizer"] = metaspace;
  file_["normalizer"] = {{"type", "NFC"}};
  EXPECT_TRUE(keys().empty());
  file_["normalizer"] = nullptr;
  file_["model"]["ignore_merges"] = true;
  EXPECT_TRUE(keys().empty());
}

// Byte-level, without tokenizer.json: as its reader resolves the other files.
TEST(SlowTokenizer, GoesAlongAsItsFilesSay) {
  const auto keys_of = [](std::vector<TokenizerFile> files) {
    const auto tokenizer = make_tokenizer(std::move(files));
    return gguf_tokenizer(*tokenizer, 10, gguf_marks({}, *tokenizer, -1));
  };
  const std::string vocabulary = R"({"a": 0, "b": 1, "ab": 2, "\u0120": 3})";
  const auto slow = [&](const std::string& config) {
    return keys_of({{"vocab.json", vocabulary},
                    {"merges.txt", "#version: 0.2\na b\n"},
                    {"tokenizer_config.json", config}});
  };
  const std::string added = R"("added_tokens_decoder": {
      "4": {"content": "<|im_start|>", "special": true},
      "5": {"content": "<|im_end|>", "special": true}, "6": {"content": "<tool>"}})";
  const std::vector<GgufKey> qwen =
      slow(R"({"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", )" + added + '}');
  ASSERT_FALSE(qwen.empty());
  EXPECT_EQ(key<std::string>(qwen, "pre"), "qwen2");
  EXPECT_EQ(key<std::vector<std::string>>(qwen, "tokens"),
            (std::vector<std::string>{"a", "b", "ab", "\u0120", "<|im_start|>", "<|im_end|>",
                                      "<tool>", "<|endoftext|>", "[PAD8]", "[PAD9]"}));
  EXPECT_EQ(key<std::vector<int32_t>>(qwen, "token_type"),
            (std::vector<int32_t>{1, 1, 1, 1, 3, 3, 4, 3, 5, 5}));
  EXPECT_EQ(key<std::vector<std::string>>(qwen, "merges"), (std::vector<std::string>{"a b"}));
  EXPECT_EQ(key<uint32_t>(qwen, "eos_token_id"), 5u);
  EXPECT_FALSE(key<bool>(qwen, "add_bos_token"));
  EXPECT_EQ(key<std::string>(slow(R"({"tokenizer_class": "GPT2Tokenizer", )" + added + '}'), "pre"),
            "gpt-2");
  // llama.cpp puts no space before a text of these.
  EXPECT_TRUE(
      slow(R"({"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": true, )" + added + '}')
          .empty());

  // A tokenizer.json that says the same gives the same keys.
  Json whole = {{"model", {{"type", "BPE"}, {"merges", {"a b"}}}},
                {"normalizer", {{"type", "NFC"}}}};
  whole["model"]["vocab"] = Json::parse(vocabulary);
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", find_split("qwen2")->patterns[0]}}},
                      {"behavior", "Isolated"}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  whole["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
  whole["added_tokens"] = {{{"id", 4}, {"content", "<|im_start|>"}, {"special", true}},
                           {{"id", 5}, {"content", "<|im_end|>"}, {"special", true}},
                           {{"id", 6}, {"content", "<tool>"}},
                           {{"id", 7}, {"content", "<|endoftext|>"}, {"special", true}}};
  const auto of_json = [&] {
    return keys_of({{"tokenizer.json", whole.dump()},
                    {"tokenizer_config.json", R"({"eos_token": "<|im_end|>"})"}});
  };
  const std::vector<GgufKey> same = of_json();
  ASSERT_EQ(same.size(), qwen.size());
  for (size_t i = 0; i < same.size(); ++i) {
    EXPECT_EQ(same[i].name, qwen[i].name);
    EXPECT_EQ(same[i].value, qwen[i].value) << same[i].name;
  }
  whole["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
  EXPECT_TRUE(of_json().empty()) << "another way to split";
}

TEST_F(ScoredTokenizer, MergesThatNoScoresExpressAreRefused) {
  SCOPED_TRACE(seed_);
  const std::vector<Json> all = merges_;
  merges_.erase(merges_.begin() + static_cast<std::ptrdiff_t>(random_() % merges_.size()));
  EXPECT_TRUE(keys().empty());
  merges_ = all;
  // The first token of three letters or more that is made in two ways, cut by another one's merge.
  const auto whole = [](const Json& merge) {
    return merge[0].get<std::string>() + merge[1].get<std::string>();
  };
  size_t second = 1;
  while (second < all.size() && whole(all[second]) != whole(all[second - 1])) ++second;
  ASSERT_LT(second, all.size());
  std::rotate(merges_.begin() + static_cast<std::ptrdiff_t>(second),
              merges_.begin() + static_cast<std::ptrdiff_t>(second) + 1, merges_.end());
  EXPECT_TRUE(keys().empty());
}

}  // namespace
}  // namespace tessera::train
