// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/chat/conversation.h"

#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

namespace tessera::train {
namespace {

constexpr LineForm kPair = LineForm::prompt_completion, kMessages = LineForm::messages;

std::string error_of(std::string_view line, LineForm form = kMessages) {
  return test::error_of<DataError>([&] { (void)parse_example(line, form, "a.jsonl, line 3"); });
}

TEST(Conversation, LinesAreRead) {
  const auto parsed = [](std::string_view line, LineForm form) {
    return parse_example(line, form, "").conversation;
  };
  EXPECT_EQ(parsed(R"({"id": 7, "prompt": "a\n", "completion": " \u00e9"})", kPair),
            (Conversation{{Role::user, "a\n"}, {Role::assistant, " é"}}));
  EXPECT_EQ(parsed(R"({"prompt": "", "completion": ""})", kPair),
            (Conversation{{Role::user, ""}, {Role::assistant, ""}}));
  EXPECT_EQ(
      parsed(R"({"messages": [{"role": "system", "content": "s", "name": null},
              {"content": "u", "role": "user"}, {"role": "tool", "content": "t"},
              {"role": "assistant", "content": "a"}]})",
             kMessages),
      (Conversation{
          {Role::system, "s"}, {Role::user, "u"}, {Role::tool, "t"}, {Role::assistant, "a"}}));
}

TEST(Conversation, MembersThatSayNothingAreNoOthers) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(parse_example(R"({"id": 0, "prompt": "a", "tools": [], "x": null, "y": "", "z": {},
                              "completion": "b", "done": false})",
                          kPair, "")
                .others,
            (Names{"id", "done"}));
  EXPECT_EQ(parse_example(R"({"tools": [1], "messages": [{"role": "user", "content": "a"}],
                              "prompt": "b"})",
                          kMessages, "")
                .others,
            (Names{"tools", "prompt"}));
}

TEST(Conversation, FaultsNamePlaceKeyAndWhatWasExpected) {
  const std::string at = "[data] a.jsonl, line 3: ";
  const std::string like = R"({"messages": [{"role": "user", "content": "..."}, ...]})";
  EXPECT_EQ(error_of("7"), at + "is a number, expected an object such as " + like);
  EXPECT_EQ(error_of("{\"messages\": [}"), at + "not JSON: wrong at byte 15 of the line");
  EXPECT_EQ(error_of("{\"a\": \"\xFF\"}"), at + "byte 8 of the line is not UTF-8");
  EXPECT_EQ(error_of(R"({"messages": [], "messages": []})"), at + "'messages' occurs twice");
  EXPECT_EQ(error_of(R"({"messages": )" + std::string(40, '[')),
            at + "nested deeper than 32 levels");
  EXPECT_EQ(error_of(R"({"text": "a"})"),
            at + "has no 'messages', expected " + like + "; it has: text");
  EXPECT_EQ(error_of(R"({"prompt": "a", "completion": "b"})"),
            at + "has no 'messages', expected " + like +
                "; it has: prompt, completion; give --dataloader.format prompt_completion");
  EXPECT_EQ(error_of(R"({"messages": [{"role": "user", "content": "a"}]})", kPair),
            at + R"(has no 'prompt', expected {"prompt": "...", "completion": "..."}; )"
                 "it has: messages; give --dataloader.format messages");
  EXPECT_EQ(error_of(R"({"prompt": "a", "completion": ["b"]})", kPair),
            at + "'completion' is an array, expected a string");
  EXPECT_EQ(error_of(R"({"messages": {}})"),
            at + "'messages' is an object, expected an array of messages");
  EXPECT_EQ(error_of(R"({"messages": []})"),
            at + "'messages' is empty, expected at least one message");
  const std::string form = R"(expected {"role": "...", "content": "..."})";
  EXPECT_EQ(error_of(R"({"messages": ["a"]})"), at + "'messages[0]' is a string, " + form);
  EXPECT_EQ(error_of(R"({"messages": [{"role": "user"}]})"),
            at + "'messages[0]' has no 'content', " + form);
  EXPECT_EQ(error_of(R"({"messages": [{"role": "user", "content": null}]})"),
            at + "'messages[0].content' is null, expected a string");
  EXPECT_EQ(error_of(R"({"messages": [{"role": "User", "content": "a"}]})"),
            at + "'messages[0].role' is 'User', expected system, user, assistant or tool");
  EXPECT_EQ(error_of(R"({"messages": [{"role": "assistant", "content": "a", "tool_calls": [1]}]})"),
            at + "'messages[0]' has 'tool_calls', which is not supported: " + form + " alone");
  std::string many = R"({"messages": [)";
  for (int i = 0; i <= 65536; ++i) many += "0,";
  EXPECT_EQ(error_of(many + "0]}"), at + "'messages' holds 65538, expected at most 65536");
}

}  // namespace
}  // namespace tessera::train
