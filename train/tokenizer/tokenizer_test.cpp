// SPDX-License-Identifier: Apache-2.0
// Faults of tokenizer files, the parts of the pipeline, and training. Ids are compared with those
// of other implementations in tests/goldens.
#include "tessera/nn/io/files.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/train/tokenizer/added_tokens.h"
#include "tessera/train/tokenizer/pattern.h"
#include "tessera/train/tokenizer/train_bpe.h"
#include "tessera/train/unicode/unicode.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace tessera::train {
namespace {

using Strings = std::vector<std::string>;
using Ids = std::vector<int32_t>;

Strings matches(const char* expression, std::string_view text) {
  const Pattern pattern(expression, "test");
  Strings all;
  size_t at = 0, steps = Pattern::steps_for(text);
  while (const auto match = pattern.find(text, at, steps)) {
    all.emplace_back(text.substr(match->first, match->second - match->first));
    at = match->second;
  }
  return all;
}

TEST(Pattern, MatchesAsOtherEnginesDo) {
  EXPECT_EQ(matches("a|ab", "ab"), Strings{"a"});
  EXPECT_EQ(matches("a*b|c{2}", "aab cccc"), (Strings{"aab", "cc", "cc"}));
  EXPECT_EQ(matches("a{1,2}", "aaa"), (Strings{"aa", "a"}));
  EXPECT_EQ(matches("a{2,}b?", "aaab a"), Strings{"aaab"});
  EXPECT_EQ(matches("<.+?>", "<a><b>"), (Strings{"<a>", "<b>"}));
  EXPECT_EQ(matches("a++b|a", "aab"), Strings{"aab"});
  EXPECT_EQ(matches("a++a|b", "aaab"), Strings{"b"});
  EXPECT_EQ(matches("(?>a|ab)c|b", "abc"), Strings{"b"});
  EXPECT_EQ(matches("(?:ab|a)*c", "abaac"), Strings{"abaac"});
  EXPECT_EQ(matches("(?:ab){1,2}", "ababab"), (Strings{"abab", "ab"}));
  EXPECT_EQ(matches("a(?=b)|c(?!b)", "abacbc"), (Strings{"a", "c"}));
  EXPECT_EQ(matches("^a|a$", "aa\naaa"), (Strings{"a", "a", "a", "a"}));
  EXPECT_EQ(matches("(?i:'sk)", "'sk'\xC5\xBF\xE2\x84\xAA'Sk"),
            (Strings{"'sk", "'\xC5\xBF\xE2\x84\xAA", "'Sk"}));
  EXPECT_EQ(matches("[a-c&&[^b]]+", "abcba"), (Strings{"a", "c", "a"}));
  EXPECT_EQ(matches("[]a-]+", "a-]b"), Strings{"a-]"});
  EXPECT_EQ(matches("\\x{E9}|\\u00E8|\\x41", "é è A"), (Strings{"é", "è", "A"}));
  EXPECT_EQ(matches("\\p{Lu}\\P{L}|[\\p{^Lu}]{2}", "Ä1ab"), (Strings{"Ä1", "ab"}));
  EXPECT_EQ(matches("\\s+", "a\xC2\x85\xE3\x80\x80 b\xE1\xA0\x8E"),
            Strings{"\xC2\x85\xE3\x80\x80 "});
  EXPECT_EQ(matches("[^a]", "\xFF\xFF"), (Strings{"\xFF", "\xFF"}));
  EXPECT_EQ(matches("a", ""), Strings());
}

TEST(Pattern, RefusesWhatItDoesNotUnderstand) {
  for (const char* bad : {"",
                          "a*",
                          "(a|b?)",
                          "(",
                          ")",
                          "a)",
                          "[a",
                          "[b-a]",
                          "*a",
                          "a{2,1}",
                          "a{0}",
                          "a{x}",
                          "a{1001}",
                          "(?<=a)b",
                          "(?<n>a)",
                          "\\1a",
                          "\\ba",
                          "\\wa",
                          "\\p{Han}",
                          "\\p{L",
                          "\\pL",
                          "(?i:é)",
                          "\\x{110000}",
                          "\\u12",
                          "(?:a?)*b",
                          "(?=a)*b",
                          "\\",
                          "[[:alpha:]]",
                          "(((((a{99}){99}){99}){99}){99})",
                          "(?:a{9}b){999}c{3}(?:(?:d|e){99}){99}"}) {
    const std::string error = test::error_of<DataError>([&] { (void)Pattern(bad, "key"); });
    EXPECT_TRUE(error.starts_with("[tokenizer] key: ")) << bad << ": " << error;
  }
  const std::string deep(40'000, '(');
  EXPECT_NE(
      test::error_of<DataError>([&] { (void)Pattern(deep, "key"); }).find("nested deeper than 32"),
      std::string::npos);
}

TEST(Pattern, AHostileSearchEndsInAnError) {
  const std::string text(4000, 'a');
  for (const char* expression : {"(?:a|a)+b", "(?:a+)+b", "(?:a{1,3}){1,99}b"}) {
    size_t steps = Pattern::steps_for(text);
    EXPECT_TRUE(test::error_of<DataError>([&] {
                  (void)Pattern(expression, "key").find(text, 0, steps);
                }).starts_with("[tokenizer] key: a search by this pattern"))
        << expression;
  }
}

TEST(Nfc, ComposesAndOrdersMarks) {
  const unicode::Composer composer;
  const auto nfc = [&](const char* text) { return composer.nfc(text); };
  EXPECT_EQ(nfc(""), "");
  EXPECT_EQ(nfc("e\u0301a"), "éa");
  EXPECT_EQ(nfc("\u212B"), "Å");
  EXPECT_EQ(nfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(nfc("s\u0323\u0307"), "\u1E69");
  EXPECT_EQ(nfc("\u1112\u1161\u11AB"), "한");
  EXPECT_EQ(nfc("\u0301e"), "\u0301e");
  EXPECT_EQ(nfc("\xFF"
                "e\u0301\xCC"),
            "\xFF"
            "é\xCC");
}

TEST(AddedTokens, TheLongestIsFoundFirst) {
  const AddedTokens tokens({{.content = "<a>", .id = 1},
                            {.content = "<a><b>", .id = 2},
                            {.content = "on", .id = 3, .single_word = true},
                            {.content = "<s>", .id = 4, .left_space = true, .right_space = true}});
  std::string seen;
  tokens.split("<a><a><b> on none  <s> \n<s>.",
               [&](std::string_view text, int32_t id) { seen += concat('[', id, ':', text, ']'); });
  EXPECT_EQ(seen, "[1:<a>][2:<a><b>][-1: ][3:on][-1: none][4:  <s> \n][4:<s>][-1:.]");
}

// A tokenizer of a few words, as a file into which faults are put.
std::string file_with(const std::string& from = "", const std::string& to = "") {
  std::string text = R"({"added_tokens": [{"id": 5, "content": "<s>", "special": true}],
 "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
 "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
   {"Sequence": {"id": "A", "type_id": 0}}]}, "decoder": {"type": "ByteLevel"},
 "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "aba": 3, "\u0120": 4}, "merges": ["a b", ["ab", "a"]]}})";
  if (!from.empty()) {
    const size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    if (at != text.npos) text.replace(at, from.size(), to);
  }
  return text;
}

std::shared_ptr<const Tokenizer> made(std::string json) {
  return make_tokenizer({{"tokenizer.json", std::move(json)}});
}

TEST(BpeTokenizer, MergesInTheOrderOfRanks) {
  const auto t = made(file_with());
  Ids ids;
  t->append("ababa<s> ab?", ids);
  EXPECT_EQ(ids, (Ids{2, 3, 5, 4, 2}));  // no token for '?'
  EXPECT_EQ(t->vocabulary(), 6);
  EXPECT_EQ(t->begin_id(), 5);
  EXPECT_EQ(t->end_id(), -1);
  EXPECT_EQ(t->text(std::vector<int64_t>{5, 3, 4, 99, -1, 1}), "aba b");
  EXPECT_TRUE(t->is_mark(5) && !t->is_mark(4) && !t->is_mark(99));
  EXPECT_EQ(make_tokenizer({t->files().begin(), t->files().end()})->vocabulary(), 6);
}

TEST(BpeTokenizer, FaultsNameFileAndKey) {
  struct Case {
    std::string from, to, error;
  };
  const std::string deep = std::string(200, '[') + std::string(200, ']');
  for (const Case& c : std::vector<Case>{
           {R"("a": 0)", R"("a": "0")", ".model.vocab['a']: is '0', expected an id"},
           {R"("a": 0)", R"("a": -1)", ".model.vocab['a']: is -1, expected an id"},
           {R"("a": 0)", R"("a": 1)", ".model.vocab['b']: id 1 is also that of 'a'"},
           {R"("a": 0)", R"("a": 4294967296)",
            ".model.vocab['a']: id 4294967296 is not below 16777216"},
           {R"("a": 0)", R"("a": 1000000)", "is far beyond the"},
           {R"("a": 0)", R"("a": 0, "a": 0)", ": 'a' occurs twice"},
           {R"("a": 0)", R"("a\u0000": 0)", ".model.merges[0]: 'a' is not in the vocabulary"},
           {R"("a b", )", R"("a c", )", ".model.merges[0]: 'c' is not in the vocabulary"},
           {R"("a b", )", R"("b a", )", ".model.merges[0]: 'ba' is not in the vocabulary"},
           {R"("a b", )", R"("a b c", )", ".model.merges[0]: is 'a b c', expected two tokens"},
           {R"("a b", )", R"(7, )", ".model.merges[0]: is 7, expected a list"},
           {R"(["ab", "a"])", R"(["ab"])", ".model.merges[1]: has 1 token, expected 2"},
           {R"("BPE")", R"("Unigram")", ".model.type: is 'Unigram', expected BPE"},
           {R"("vocab")", R"("vocabulary")", ".model.vocab: is missing"},
           {R"("vocab": {)", R"("vocab": [)", ": not JSON: wrong at line 5"},
           {R"("merges")", R"("dropout": 0.1, "merges")", ".model.dropout: is 0.1, expected null"},
           {R"("merges")", R"("end_of_word_suffix": "</w>", "merges")",
            ".model.end_of_word_suffix: is not supported"},
           {R"("merges")", R"("unk_token": "?", "merges")",
            ".model.unk_token: '?' is not in the vocabulary"},
           {R"("merges")", R"("ignore_merges": 1, "merges")",
            ".model.ignore_merges: is 1, expected true or false"},
           {R"("merges")", R"("byte_fallback": true, "merges")",
            ".model.byte_fallback: is true in a byte-level model"},
           {R"("normalizer": null)", R"("normalizer": {"type": "NFKC"})",
            ".normalizer.type: is 'NFKC', expected"},
           {R"("normalizer": null)", R"("normalizer": {})", ".normalizer.type: is missing"},
           {R"("normalizer": null)",
            R"("normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"})",
            ".pattern.String: is '', expected"},
           {R"({"type": "ByteLevel", "add_prefix_space": false})", R"({"type": "Whitespace"})",
            ".pre_tokenizer.type: is 'Whitespace', expected"},
           {R"({"type": "ByteLevel", "add_prefix_space": false})",
            R"({"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"})",
            ".pre_tokenizer.pattern.Regex: a '(' without its ')'"},
           {R"({"type": "ByteLevel", "add_prefix_space": false})",
            R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Cut"})",
            ".behavior: is 'Cut', expected"},
           {R"({"type": "ByteLevel", "add_prefix_space": false})",
            R"({"type": "Metaspace", "replacement": ""})",
            ".replacement: is '', expected one character"},
           {R"("decoder": {"type": "ByteLevel"})", R"("decoder": {"type": "CTC"})",
            ".decoder.type: is 'CTC', expected"},
           {R"("id": 5)", R"("id": 2)", ".added_tokens[0].id: id 2 is also that of 'ab'"},
           {R"("content": "<s>")", R"("content": "ab")",
            ".added_tokens[0].id: is 5, but the vocabulary has 'ab' at 2"},
           {R"("content": "<s>")", R"("content": "")", ".added_tokens[0].content: is empty"},
           {R"({"id": "<s>")", R"({"id": "<t>")", ".id: '<t>' is not in the vocabulary"},
           {R"("normalizer": null)", R"("normalizer": )" + deep,
            ": nested deeper than 32 levels"}}) {
    const std::string error =
        test::error_of<DataError>([&] { (void)made(file_with(c.from, c.to)); });
    EXPECT_TRUE(error.starts_with("[tokenizer] tokenizer.json")) << error;
    EXPECT_NE(error.find(c.error), error.npos) << error << "\nexpected " << c.error;
  }
  for (const char* text :
       {"", "7", "[]", "{}", "{\"model\": 1}", "{\"model\": {\"vocab\": {}}}", "nonsense"})
    EXPECT_TRUE(test::error_of<DataError>([&] { (void)made(text); }).starts_with("[tokenizer] "))
        << text;
}

TEST(BpeTokenizer, FaultsBetweenFilesAreNamed) {
  const auto error = [](std::vector<TokenizerFile> files) {
    return test::error_of<DataError>([&] { (void)make_tokenizer(std::move(files)); });
  };
  EXPECT_EQ(error({{"merges.txt", ""}}),
            "[tokenizer] neither tokenizer.json nor vocab.json and merges.txt are given");
  EXPECT_EQ(error({{"tokenizer.json", file_with(R"("\u0120": 4)", R"("\u0120": 6)")},
                   {"tokenizer_config.json", R"({"eos_token": "<end>"})"}}),
            "[tokenizer] tokenizer_config.json.eos_token: '<end>' is new, but ids before the last "
            "one are free, so its id is not known");
  EXPECT_EQ(error({{"tokenizer.json", file_with()},
                   {"tokenizer_config.json", R"({"add_bos_token": false})"}}),
            "[tokenizer] tokenizer_config.json.add_bos_token: is false, but the post_processor of "
            "tokenizer.json puts '<s>' before a text: make them agree");
}

TEST(NoTokenizer, SaysWhyThereIsNone) {
  const NoTokenizer none("the folder is gone");
  Ids ids;
  EXPECT_EQ(test::error_of<DataError>([&] { none.append("a", ids); }),
            "[tokenizer] the folder is gone");
}

using TokenizerFiles = test::FolderTest;

TEST_F(TokenizerFiles, AreFoundInAFolder) {
  const auto write = [&](const char* name, std::string_view text) {
    io::write_file_atomically(folder_ + "/" + name, text);
  };
  EXPECT_TRUE(test::error_of<DataError>([&] {
                (void)open_tokenizer(folder_, "field");
              }).starts_with("[field] folder " + folder_ + " holds neither tokenizer.json"));
  EXPECT_EQ(test::error_of<ConfigError>([&] { (void)open_tokenizer(folder_ + "/no", "field"); }),
            "[field] " + folder_ + "/no does not exist");
  EXPECT_EQ(open_tokenizer("", "field")->vocabulary(), ByteTokenizer::kVocabulary);
  write("vocab.json", R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})");
  write("merges.txt", "#version: 0.2\r\na b\r\n");
  const auto t = open_tokenizer(folder_, "field");
  Ids ids;
  t->append("aab<|endoftext|>", ids);
  EXPECT_EQ(ids, (Ids{0, 2, 3}));
  EXPECT_EQ(t->end_id(), 3);
  write("config.json", R"({"model_type": "qwen2"})");
  EXPECT_EQ(test::error_of<DataError>([&] { (void)open_tokenizer(folder_, "field"); }),
            concat("[field] folder ", folder_,
                   " holds a qwen2, vocab.json and merges.txt, but nothing says how text is split: "
                   "write \"tokenizer_class\", such as \"Qwen2Tokenizer\", into "
                   "tokenizer_config.json"));
  write("config.json", R"({"model_type": "gpt2"})");
  write("merges.txt", "a b\na  b\n");
  EXPECT_EQ(test::error_of<DataError>([&] { (void)open_tokenizer(folder_, "field"); }),
            concat("[field] ", folder_,
                   ": [tokenizer] merges.txt line 2: is 'a  b', expected two tokens with one space "
                   "between them"));
  write("tokenizer.json", file_with());
  write("tokenizer_config.json", R"({"bos_token": "b", "eos_token": {"content": "<s>"}})");
  EXPECT_EQ(open_tokenizer(folder_, "field")->end_id(), 5);
  EXPECT_EQ(open_tokenizer(folder_, "field")->begin_id(), 5);  // the template's
  EXPECT_EQ(open_tokenizer(folder_ + "/tokenizer.json", "field")->end_id(), -1);
  write("tokenizer_config.json", R"({"eos_token": "<|not a token|>"})");
  EXPECT_EQ(open_tokenizer(folder_, "field")->end_id(), 6);  // new, as in transformers
}

TEST(BpeTrainer, MakesATokenizerThatIsLossless) {
  std::mt19937 random(3);
  for (const std::string& split : BpeTrainer::split_names()) {
    BpeTrainer trainer({.vocabulary = 300, .split = split});
    for (int i = 0; i < 50; ++i) trainer.add("the cat and the hat, and 12345 cats\n  in the end");
    const auto files = trainer.train();
    EXPECT_EQ(files[0].bytes, trainer.train()[0].bytes);
    const auto t = make_tokenizer(files);
    EXPECT_LE(t->vocabulary(), 300);
    EXPECT_EQ(t->begin_id(), 0);
    EXPECT_EQ(t->end_id(), 1);
    Ids known, ids;
    t->append("the cat and the hat", known);
    EXPECT_EQ(known.size(), 5) << split;
    std::string text;
    for (int i = 0; i < 2000; ++i) text += static_cast<char>(random() % 256);
    t->append(text, ids);
    EXPECT_EQ(t->text(std::vector<int64_t>(ids.begin(), ids.end())), text) << split;
  }
  EXPECT_TRUE(test::error_of<ValueError>([] {
                (void)BpeTrainer({.vocabulary = 257});
              }).starts_with("[tokenizer train] "));
  EXPECT_TRUE(test::error_of<ValueError>([] {
                (void)BpeTrainer({.vocabulary = 300, .split = "x"});
              }).starts_with("[tokenizer train] "));
  BpeTrainer nothing({.vocabulary = 300});
  EXPECT_EQ(make_tokenizer(nothing.train())->vocabulary(), 258);
}

}  // namespace
}  // namespace tessera::train
