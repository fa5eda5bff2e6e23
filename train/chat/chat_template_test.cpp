// SPDX-License-Identifier: Apache-2.0
// Templates and what is refused in them, and the borders of answers. Ids of the field's own
// templates are compared with those of transformers in tests/goldens.
#include "tessera/train/chat/chat_template.h"

#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/train/chat/chat_encoder.h"

#include <gtest/gtest.h>

namespace tessera::train {
namespace {

using Ids = std::vector<int32_t>;

std::string error_of(std::string_view json) {
  return test::error_of<DataError>([&] { (void)parse_chat_template(json, "t"); });
}

// Tokens of bytes as text, with marks by name, and `[...]` around what the assistant says.
std::string shown(const EncodedConversation& made) {
  const ByteTokenizer bytes;
  std::string text;
  bool inside = false;
  for (size_t i = 0; i < made.ids.size(); ++i) {
    if ((made.answers[i] != 0) != inside) text += inside ? ']' : '[';
    inside = made.answers[i] != 0;
    text += bytes.bytes(made.ids[i]);
  }
  return inside ? text + ']' : text;
}
std::string shown(std::string_view json, const Conversation& conversation) {
  const ByteTokenizer bytes;
  return shown(ChatEncoder(parse_chat_template(json, "t"), bytes, "test").encode(conversation));
}

const Conversation kTwoTurns{
    {Role::user, " a "}, {Role::assistant, "b\n"}, {Role::user, "c"}, {Role::assistant, ""}};

TEST(ChatTemplate, AnswersEndWithTheirMark) {
  EXPECT_EQ(shown(R"({"begin": [{"mark": "<begin>"}, "x"], "roles": {
                "user": {"prefix": ["U", ":"], "suffix": ["\n"]},
                "assistant": {"prefix": ["A:"], "suffix": [".", {"mark": "<end>"}, "\n"]}}})",
                  kTwoTurns),
            "<begin>xU: a \nA:[b\n.<end>]\nU:c\nA:[.<end>]\n");
  // Without a mark all of the suffix tells the end.
  EXPECT_EQ(shown(R"({"roles": {"user": {"prefix": ["U:"]}, "assistant": {"suffix": ["\n\n"]}}})",
                  kTwoTurns),
            "U: a [b\n\n\n]U:c[\n\n]");
  // The model writes what the prompt does not give it.
  EXPECT_EQ(shown(R"({"generation_prompt": ["A"], "trim": true, "roles": {
                "user": {}, "assistant": {"prefix": ["A: "], "suffix": [{"own_mark": "end"}]}}})",
                  kTwoTurns),
            "aA[: b<end>]cA[: <end>]");
}

TEST(ChatTemplate, RolesWithoutAFormAreRefusedAndDefaultsFilledIn) {
  const std::string json = R"({"default_system": "s", "roles": {
    "system": {"prefix": ["S:"], "suffix": ["|"]}, "user": {"prefix": ["U:"]},
    "user_after_system": {"prefix": ["+"]}, "assistant": {"suffix": [{"own_mark": "end"}]}}})";
  EXPECT_EQ(shown(json, kTwoTurns), "S:s|+ a [b\n<end>]U:c[<end>]");
  EXPECT_EQ(shown(json, {{Role::system, "x"}, {Role::user, "y"}}), "S:x|+y");
  EXPECT_EQ(shown(json, {{Role::user, "y"}, {Role::system, "x"}}), "S:s|+yS:x|");
  EXPECT_EQ(test::error_of([&] {
              (void)shown(json, {{Role::tool, "t"}});
            }),
            "[chat_template] t has no form for the role tool; give another "
            "--dataloader.chat_template");
}

TEST(ChatTemplate, PlainIsPromptAndCompletionBetweenMarks) {
  const ByteTokenizer bytes;
  const ChatEncoder plain(find_chat_template("plain", "test"), bytes, "test");
  EXPECT_EQ(shown(plain.encode({{Role::user, "<end>é"}, {Role::assistant, " b"}})),
            "<begin><end>é[ b<end>]");
  EXPECT_EQ(plain.prompt({{Role::user, "a"}}), (Ids{256, 'a'}));
  EXPECT_FALSE(plain.encode({{Role::user, ""}, {Role::assistant, ""}}).crosses_border);
}

// The mark that begins the tokenizer's documents, if they begin with one.
TEST(ChatTemplate, PlainBeginsAsDocumentsDo) {
  for (const bool begins : {true, false}) {
    const auto tokenizer = make_tokenizer(
        {{"tokenizer.json",
          R"({"model": {"type": "BPE", "vocab": {"a": 0, "<s>": 1, "</s>": 2}, "merges": []}})"},
         {"tokenizer_config.json", concat(R"({"bos_token": "<s>", "eos_token": "</s>",
                                              "add_bos_token": )",
                                          begins ? "true" : "false", '}')}});
    const ChatEncoder plain(find_chat_template("plain", "test"), *tokenizer, "test");
    EXPECT_EQ(plain.encode({{Role::user, "a"}, {Role::assistant, "a"}}).ids,
              begins ? (Ids{1, 0, 0, 2}) : (Ids{0, 0, 2}));
  }
}

// Merges join "b" and "c": where a prompt ends between them, their token is of the answer.
TEST(ChatTemplate, ATokenAcrossTheBorderIsAnAnswer) {
  const auto t = make_tokenizer({{"tokenizer.json", R"({"model": {"type": "BPE",
    "vocab": {"a": 0, "b": 1, "c": 2, "bc": 3}, "merges": ["b c"]}})"}});
  const ChatEncoder plain(find_chat_template("plain", "test"), *t, "test");
  const EncodedConversation across = plain.encode({{Role::user, "ab"}, {Role::assistant, "ca"}});
  EXPECT_EQ(across.ids, (Ids{0, 3, 0}));
  EXPECT_EQ(across.answers, (std::vector<uint8_t>{0, 1, 1}));
  EXPECT_TRUE(across.crosses_border);
  const EncodedConversation apart = plain.encode({{Role::user, "a"}, {Role::assistant, "bca"}});
  EXPECT_EQ(apart.answers, (std::vector<uint8_t>{0, 1, 1}));
  EXPECT_FALSE(apart.crosses_border);
}

TEST(ChatTemplate, BordersBetweenTwoMarksAreBounded) {
  const ByteTokenizer bytes;
  const ChatTemplate unmarked =
      parse_chat_template(R"({"roles": {"user": {}, "assistant": {}}})", "t");
  const ChatEncoder chat(unmarked, bytes, "test");
  Conversation turns;
  for (int i = 0; i < 200; ++i) {
    turns.push_back({Role::user, "a"});
    turns.push_back({Role::assistant, "b"});
  }
  EXPECT_EQ(test::error_of<DataError>([&] { (void)chat.encode(turns); }),
            "[chat_template] more than 256 borders of answers lie between two marks: give a "
            "template that ends each answer with a mark, or shorter conversations");
}

// Merges alone could make the name of a mark; then the text has no other tokens.
TEST(ChatTemplate, AMarkThatMergesMakeIsRefused) {
  const auto t = make_tokenizer({{"tokenizer.json", R"({"model": {"type": "BPE",
    "vocab": {"<": 0, ">": 1, "<>": 2}, "merges": ["< >"]},
    "added_tokens": [{"id": 2, "content": "<>", "special": true}]})"}});
  Ids ids;
  EXPECT_EQ(test::error_of<DataError>([&] { t->append_untrusted("<<>", true, ids); }),
            "[tokenizer] the text '<<>' gives the mark <>, which its merges make of plain "
            "characters; only a template may write it");
}

TEST(ChatTemplate, FaultsNameTheKey) {
  const std::string at = "[chat_template] t";
  EXPECT_EQ(error_of("{"), at + ": not JSON: wrong at line 1, column 2");
  EXPECT_EQ(error_of(std::string(70000, ' ')), at + ": holds 70000 bytes, expected at most 65536");
  EXPECT_EQ(error_of("[]"),
            at + ": is array, expected an object of begin, roles, generation_prompt, "
                 "default_system, trim");
  EXPECT_EQ(error_of(R"({"role": {}})"),
            at + ": has the unknown key 'role', expected begin, roles, generation_prompt, "
                 "default_system, trim");
  EXPECT_EQ(error_of("{}"), at + ", roles: is missing, expected an object of roles");
  EXPECT_EQ(error_of(R"({"roles": {"user": {}}})"), at + ", roles: has no assistant");
  EXPECT_EQ(error_of(R"({"roles": {"User": {}}})"),
            at + ", roles: has the unknown key 'User', expected system, user, user_after_system, "
                 "assistant, tool");
  EXPECT_EQ(error_of(R"({"roles": {"user": {"prefix": "a"}}})"),
            at + ", roles.user.prefix: is 'a', expected a list");
  EXPECT_EQ(error_of(R"({"begin": [7]})"),
            at + ", begin[0]: is number, expected a string, {\"mark\": NAME} or {\"own_mark\": "
                 "\"begin\" or \"end\"}");
  EXPECT_EQ(error_of(R"({"begin": [{"own_mark": "bos"}]})"),
            at + ", begin[0].own_mark: is 'bos', expected begin or end");
  const std::string roles = R"("roles": {"user": {}, "assistant": {"prefix": ["ab"]}})";
  EXPECT_EQ(error_of(R"({"generation_prompt": ["b"], )" + roles + "}"),
            at + ", generation_prompt: is not the beginning of roles.assistant.prefix");
  EXPECT_EQ(error_of(R"({"default_system": "s", )" + roles + "}"),
            at + ", default_system: is given, but roles has no system");
  EXPECT_EQ(error_of(R"({"trim": 1, )" + roles + "}"),
            at + ", trim: is number, expected true or false");
}

class ChatTemplateFiles : public test::FolderTest {};
TEST_F(ChatTemplateFiles, AreFoundByPathAndMarksByName) {
  const std::string path = put("t.json", R"({"roles": {"user": {}, "assistant": {}}})");
  EXPECT_EQ(find_chat_template(path, "f").name, path);
  EXPECT_EQ(
      test::error_of<ConfigError>([&] { (void)find_chat_template("llama", "f"); }),
      "[--f] 'llama' is neither a file nor one of plain, chatml, qwen2, llama3, llama2, mistral");
  const ByteTokenizer bytes;
  EXPECT_EQ(test::error_of<ConfigError>(
                [&] { (void)ChatEncoder(find_chat_template("llama3", "f"), bytes, "f"); }),
            "[--f] llama3 writes the mark <|begin_of_text|>, which is no special token of the "
            "tokenizer: give the template of this model, or a tokenizer that has the mark");
}

}  // namespace
}  // namespace tessera::train
