// SPDX-License-Identifier: Apache-2.0
// Tokenizers of two or three tokens.
#include "tessera/tests/hostile/cases.h"

namespace tessera::hostile {
namespace {

const std::string kModel = R"({"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]})";

// tokenizer.json with this model, and more members before it.
std::string file(const std::string& model, const std::string& more = "") {
  return "{" + more + "\"model\": " + model + "}";
}
std::string split(const std::string& pattern) {
  return file(kModel, R"("pre_tokenizer": {"type": "Split", "behavior": "Isolated", "pattern": )" +
                          pattern + "}, ");
}

}  // namespace

Cases tokenizer_cases() {
  const Words words{"tokenize", "--tokenizer", "$IN", "--text", repeated("a", 40) + "b"};
  Cases cases;
  const auto text = [&](const std::string& name, const std::string& json) {
    cases.push_back({"tokenizer.json, " + name, words, {{"tokenizer.json", json}}});
  };
  const auto model = [&](const std::string& name, const std::string& from, const std::string& by) {
    text(name, file(with(kModel, from, by)));
  };
  text("an empty file", "");
  text("a list", "[]");
  text("no model", "{}");
  text("text that is cut", R"({"model": {"vocab": {"a": 0, )");
  text("a NUL behind it", file(kModel) + std::string(1, '\0'));
  text("bytes that are not UTF-8", file(with(kModel, "\"ab\"", "\"\xff\"")));
  text("brackets 100000 deep", "{\"model\": " + repeated("[", 100'000));
  text("a model of another kind", file(R"({"type": "Unigram", "vocab": [["a", -1.5]]})"));
  text("a member twice", file(kModel, "\"model\": 1, "));
  model("a vocabulary that is a list", R"({"a": 0, "b": 1, "ab": 2})", R"(["a", "b", "ab"])");
  model("an empty vocabulary", R"({"a": 0, "b": 1, "ab": 2})", "{}");
  model("a token twice", "\"b\": 1", "\"b\": 1, \"b\": 3");
  model("an id twice", "\"b\": 1", "\"b\": 0");
  model("a negative id", "\"b\": 1", "\"b\": -1");
  model("an id that is not whole", "\"b\": 1", "\"b\": 1.5");
  model("an id that is text", "\"b\": 1", "\"b\": \"1\"");
  model("an id of 2^64", "\"b\": 1", "\"b\": 18446744073709551616");
  model("an id of 2^40", "\"b\": 1", "\"b\": 1099511627776");
  model("an id far beyond the tokens", "\"b\": 1", "\"b\": 16000000");
  model("a token of 100000 bytes", "\"b\"", "\"" + repeated("b", 100'000) + "\"");
  model("a merge of an unknown token", "\"a b\"", "\"a c\"");
  model("a merge that makes an unknown token", "\"a b\"", "\"b a\"");
  model("a merge of one token", "\"a b\"", "\"ab\"");
  model("a merge of three tokens", "\"a b\"", "\"a b a\"");
  model("a merge of three tokens in a list", "\"a b\"", R"(["a", "b", "a"])");
  model("a merge of numbers", "\"a b\"", "[0, 1]");
  model("a merge that is an object", "\"a b\"", R"({"a": "b"})");
  model("merges that are text", R"(["a b"])", "\"a b\"");
  model("an unknown token for unknown ones", "\"vocab\"", "\"unk_token\": \"<unk>\", \"vocab\"");
  model("dropout", "\"vocab\"", "\"dropout\": 0.5, \"vocab\"");
  model("a suffix of words", "\"vocab\"", "\"end_of_word_suffix\": \"</w>\", \"vocab\"");
  text("an unknown normalizer", file(kModel, R"("normalizer": {"type": "Precompiled"}, )"));
  text("an unknown pre-tokenizer", file(kModel, R"("pre_tokenizer": {"type": "Bert"}, )"));
  text("an unknown decoder", file(kModel, R"("decoder": {"type": "WordPiece"}, )"));
  text("a pre-tokenizer without a type", file(kModel, R"("pre_tokenizer": {}, )"));
  text("pre-tokenizers 1000 deep",
       file(kModel,
            "\"pre_tokenizer\": " + repeated(R"({"type": "Sequence", "pretokenizers": [)", 1000) +
                repeated("]}", 1000) + ", "));
  text("a row of 1000 pre-tokenizers",
       file(kModel, R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": [)" +
                        repeated(R"({"type": "Digits"}, )", 999) + R"({"type": "Digits"}]}, )"));
  text("two of ByteLevel", file(kModel, R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": [
 {"type": "ByteLevel"}, {"type": "ByteLevel"}]}, )"));
  text("an empty text to split at", split(R"({"String": ""})"));
  text("a pattern that does not end", split(R"({"Regex": "(a"})"));
  text("a pattern that calls code", split(R"({"Regex": "(?{ system('true') })a"})"));
  text("groups 5000 deep",
       split("{\"Regex\": \"" + repeated("(", 5000) + "a" + repeated(")", 5000) + "\"}"));
  text("a pattern of 200000 bytes", split("{\"Regex\": \"" + repeated("a", 200'000) + "\"}"));
  text("a pattern of exponential time", split(R"({"Regex": "(a+)+c"})"));
  text("an added token of another id",
       file(kModel, R"("added_tokens": [{"id": 7, "content": "a"}], )"));
  text("an added token of a taken id",
       file(kModel, R"("added_tokens": [{"id": 1, "content": "x"}], )"));
  text("an empty added token", file(kModel, R"("added_tokens": [{"id": 3, "content": ""}], )"));
  text("an added token of a huge id",
       file(kModel, R"("added_tokens": [{"id": 4294967299, "content": "x"}], )"));
  text("a template of an unknown mark",
       file(kModel, R"("post_processor": {"type": "TemplateProcessing",
 "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}, )"));

  const auto two = [&](const std::string& name, const std::string& vocabulary,
                       const std::string& merges) {
    cases.push_back(
        {"vocab.json, " + name, words, {{"vocab.json", vocabulary}, {"merges.txt", merges}}});
  };
  const std::string vocabulary = R"({"a": 0, "b": 1, "ab": 2})";
  two("an empty file", "", "a b\n");
  two("a list", "[]", "a b\n");
  two("a hole of 10^7 ids", R"({"a": 0, "b": 10000000})", "");
  two("a merge of an unknown token", vocabulary, "#version: 0.2\na b\na c\n");
  two("a merge of one token", vocabulary, "a\n");
  two("a merge with a NUL", vocabulary, std::string("a \0b\n", 5));
  two("merges that are not UTF-8", vocabulary, "a \xff\n");
  two("merges that are JSON", vocabulary, "{\"a\": \"b\"}\n");
  cases.push_back({"vocab.json, no merges.txt", words, {{"vocab.json", vocabulary}}});
  cases.push_back({"tokenizer_config.json, a list",
                   words,
                   {{"tokenizer.json", file(kModel)}, {"tokenizer_config.json", "[]"}}});
  return cases;
}

}  // namespace tessera::hostile
