// SPDX-License-Identifier: Apache-2.0
// Conversations to tokens, by a chat template. Only the template writes marks (special tokens): the
// text of a message never becomes one. Text between two marks is tokenised as a whole, which gives
// the ids that apply_chat_template of the package transformers gives.
#pragma once

#include "tessera/train/chat/chat_template.h"
#include "tessera/train/chat/conversation.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::train {

struct EncodedConversation {
  std::vector<int32_t> ids;
  /// 1 for tokens that the assistant says, the mark that ends its turn among them: those that
  /// training predicts.
  std::vector<uint8_t> answers;
  /// Whether a token holds text of both sides of the border between prompt and answer; it counts
  /// as answer.
  bool crosses_border = false;
};

/// Called from several threads at once.
class TESSERA_API ChatEncoder {
 public:
  /// `tokenizer` must outlive it. ConfigError, which names `field`: it has no such mark.
  ChatEncoder(const ChatTemplate& chat, const Tokenizer& tokenizer, const std::string& field);
  /// DataError: a role of which the template has no form, and as Tokenizer::append_untrusted.
  [[nodiscard]] EncodedConversation encode(const Conversation& conversation) const;
  /// What the model is given to answer: the conversation and the generation prompt.
  [[nodiscard]] std::vector<int32_t> prompt(const Conversation& conversation) const;
  /// The mark that ends an answer; -1 if the template writes none.
  [[nodiscard]] int64_t end_of_answer() const;

 private:
  struct Part {
    int64_t mark = -1;  // -1: text
    std::string text;
  };
  using Parts = std::vector<Part>;
  struct Turn {
    Parts prefix, suffix;
  };
  class Writer;
  [[nodiscard]] Parts resolved(const TemplateText& text, const std::string& field) const;
  void write(const Conversation& conversation, Writer& to) const;
  void write_turn(Role role, const Turn& turn, std::string_view content, Writer& to) const;

  std::string name_;
  const Tokenizer& tokenizer_;
  Parts begin_, generation_prompt_, answer_prefix_;
  std::array<std::optional<Turn>, kRoleNames.size()> turns_;
  std::optional<Turn> user_after_system_;
  std::optional<std::string> default_system_;
  bool trim_ = false;
};

}  // namespace tessera::train
