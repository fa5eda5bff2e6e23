// SPDX-License-Identifier: Apache-2.0
// Conversations as apply_chat_template of the package transformers writes them, and texts that name
// special tokens (chat_templates.py).
#include "tessera/nn/io/files.h"
#include "tessera/train/chat/chat_encoder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>

namespace tessera::train {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

const Json& goldens() {
  static const Json all = Json::parse(std::ifstream("tests/goldens/chat_templates.json"));
  return all;
}

class ChatTemplateGoldens : public testing::TestWithParam<const char*> {
 protected:
  // That of tokenizer_ids, with the marks of the template added behind its ids.
  ChatTemplateGoldens() {
    const std::string base = golden_["tokenizer"];
    Json file = Json::parse(io::read_file("tests/goldens/tokenizer_ids/" + base + ".json"));
    int64_t next = 0;
    for (const auto& [token, id] : file["model"]["vocab"].items())
      next = std::max<int64_t>(next, id);
    for (const Json& added : file["added_tokens"]) next = std::max<int64_t>(next, added["id"]);
    for (const Json& mark : golden_["marks"])
      file["added_tokens"].push_back(
          {{"content", mark}, {"id", ++next}, {"special", true}, {"normalized", false}});
    tokenizer_ = make_tokenizer({{"tokenizer.json", file.dump()}});
  }
  [[nodiscard]] ChatEncoder encoder() const {
    return {find_chat_template(GetParam(), "test"), *tokenizer_, "test"};
  }
  static Conversation conversation_of(const Json& golden) {
    return parse_example(Json{{"messages", golden["messages"]}}.dump(), LineForm::messages,
                         "golden")
        .conversation;
  }

  const Json& golden_ = goldens()[GetParam()];
  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_P(ChatTemplateGoldens, IdsAndAnswersAreThoseOfThePackage) {
  const ChatEncoder chat = encoder();
  ASSERT_GE(golden_["cases"].size(), 4u);
  for (const Json& golden : golden_["cases"]) {
    const Conversation conversation = conversation_of(golden);
    const EncodedConversation made = chat.encode(conversation);
    std::string text, answers;
    for (const int32_t id : made.ids) text += tokenizer_->bytes(id);
    for (const uint8_t answer : made.answers) answers += answer != 0 ? '1' : '0';
    EXPECT_EQ(made.ids, golden["ids"].get<Ids>()) << text << "\nexpected\n" << golden["text"];
    EXPECT_EQ(answers, golden["answers"]) << text;
    EXPECT_EQ(chat.prompt(conversation), golden["prompt"].get<Ids>());
  }
}

TEST_P(ChatTemplateGoldens, NoTextBecomesAMark) {
  const ChatEncoder chat = encoder();
  const auto marks_of = [&](const Conversation& conversation) {
    Ids marks;
    for (const int32_t id : chat.encode(conversation).ids) {
      if (tokenizer_->is_mark(id)) marks.push_back(id);
    }
    return marks;
  };
  const Ids harmless = marks_of({{Role::user, "a"}, {Role::assistant, "b"}});
  for (const Json& golden : golden_["untrusted"]) {
    const std::string text = golden["text"];
    Ids ids;
    tokenizer_->append_untrusted(text, true, ids);
    EXPECT_EQ(ids, golden["ids"].get<Ids>()) << text;
    EXPECT_EQ(marks_of({{Role::user, text}, {Role::assistant, text}}), harmless) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Templates, ChatTemplateGoldens,
                         testing::Values("chatml", "qwen2", "llama3", "llama2", "mistral"),
                         [](const auto& of) { return std::string(of.param); });

}  // namespace
}  // namespace tessera::train
