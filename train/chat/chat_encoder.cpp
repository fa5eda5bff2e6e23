// SPDX-License-Identifier: Apache-2.0
// The border between prompt and answer may lie within text between two marks. There the answer
// begins at the first token that the text of the prompt alone would not have: a model that is given
// that prompt has to say the rest.
#include "tessera/train/chat/chat_encoder.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/unicode/unicode.h"

#include <algorithm>
#include <utility>

namespace tessera::train {
namespace {

// As Jinja's trim, which templates of the field use.
std::string_view trimmed(std::string_view text) {
  static const unicode::CharSet spaces = [] {
    unicode::Ranges all = unicode::white_space();
    all.emplace_back(0x1C, 0x20);
    return unicode::CharSet(unicode::normalised(std::move(all)));
  }();
  while (!text.empty()) {
    const unicode::Character first = unicode::character_at(text, 0);
    if (!spaces.contains(first.point)) break;
    text.remove_prefix(first.bytes);
  }
  while (!text.empty()) {
    const size_t last = unicode::previous(text, text.size());
    if (!spaces.contains(unicode::character_at(text, last).point)) break;
    text = text.substr(0, last);
  }
  return text;
}

}  // namespace

// Collects text until a mark ends it.
class ChatEncoder::Writer {
 public:
  explicit Writer(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void text(std::string_view text, bool answer) {
    if (answer != answer_) {
      // Each costs the tokenisation of the text before it.
      constexpr size_t kMostBorders = 256;
      if (borders_.size() == kMostBorders) {
        fail<DataError>("chat_template", "more than ", kMostBorders,
                        " borders of answers lie between two marks: give a template that ends each "
                        "answer with a mark, or shorter conversations");
      }
      borders_.push_back({text_.size(), answer});
    }
    answer_ = answer;
    text_ += text;
  }
  void mark(int64_t id, bool answer) {
    end_text();
    made_.ids.push_back(static_cast<int32_t>(id));
    made_.answers.push_back(answer ? 1 : 0);
  }
  void parts(const Parts& parts, bool answer) {
    for (const Part& part : parts) {
      if (part.mark < 0) text(part.text, answer);
      else mark(part.mark, answer);
    }
  }
  [[nodiscard]] EncodedConversation finish() {
    end_text();
    return std::move(made_);
  }

 private:
  struct Border {
    size_t at = 0;  // byte of the text
    bool answer = false;
  };

  void end_text() {
    const bool first = made_.ids.empty();
    std::vector<int32_t> ids, before;
    if (!text_.empty()) tokenizer_.append_untrusted(text_, first, ids);
    std::vector<uint8_t> answers(ids.size(), begins_as_answer_ ? 1 : 0);
    for (const Border& border : borders_) {
      before.clear();
      const auto head = std::string_view(text_).substr(0, border.at);
      if (!head.empty()) tokenizer_.append_untrusted(head, first, before);
      const auto same = std::ranges::mismatch(before, ids);
      if (same.in1 != before.end() && border.at < text_.size()) made_.crosses_border = true;
      std::fill(answers.begin() + (same.in2 - ids.begin()), answers.end(), border.answer ? 1 : 0);
    }
    made_.ids.insert(made_.ids.end(), ids.begin(), ids.end());
    made_.answers.insert(made_.answers.end(), answers.begin(), answers.end());
    text_.clear();
    borders_.clear();
    begins_as_answer_ = answer_;
  }

  const Tokenizer& tokenizer_;
  EncodedConversation made_;
  std::string text_;
  std::vector<Border> borders_;  // where answers begin and end
  bool begins_as_answer_ = false, answer_ = false;
};

ChatEncoder::ChatEncoder(const ChatTemplate& chat, const Tokenizer& tokenizer,
                         const std::string& field)
    : name_(chat.name),
      tokenizer_(tokenizer),
      begin_(resolved(chat.begin, field)),
      generation_prompt_(resolved(chat.generation_prompt, field)),
      answer_prefix_(resolved(chat.answer_prefix, field)),
      default_system_(chat.default_system),
      trim_(chat.trim) {
  const auto turn = [&](const std::optional<ChatTemplate::Turn>& t) {
    return t ? std::optional(Turn{resolved(t->prefix, field), resolved(t->suffix, field)})
             : std::nullopt;
  };
  for (size_t role = 0; role < turns_.size(); ++role) turns_[role] = turn(chat.turns[role]);
  user_after_system_ = turn(chat.user_after_system);
}

ChatEncoder::Parts ChatEncoder::resolved(const TemplateText& text, const std::string& field) const {
  using Kind = TemplatePart::Kind;
  Parts parts;
  for (const TemplatePart& part : text) {
    if (part.kind == Kind::text) {
      // Text is never read as a mark, so its name here would become characters.
      for (int64_t id = 0; id < tokenizer_.vocabulary(); ++id) {
        if (!tokenizer_.is_mark(id)) continue;
        const std::string name = tokenizer_.bytes(id);
        if (name.empty() || part.text.find(name) == part.text.npos) continue;
        fail<ConfigError>("--" + field, io::excerpt(name_), " has the special token ",
                          io::excerpt(name, 60), " within a text: write {\"mark\": \"",
                          io::excerpt(name, 60), "\"} in its place");
      }
      parts.push_back({-1, part.text});
      continue;
    }
    const bool named = part.kind == Kind::mark;
    const int64_t id = named                         ? tokenizer_.mark(part.text)
                       : part.kind == Kind::end_mark ? tokenizer_.end_id()
                       : tokenizer_.begins_texts()   ? tokenizer_.begin_id()
                                                     : -1;
    if (named && id < 0) {
      fail<ConfigError>("--" + field, io::excerpt(name_), " writes the mark ",
                        io::excerpt(part.text, 60),
                        ", which is no special token of the tokenizer: give the template of this "
                        "model, or a tokenizer that has the mark");
    }
    if (id >= 0) parts.push_back({id, {}});
  }
  return parts;
}

void ChatEncoder::write_turn(Role role, const Turn& turn, std::string_view content,
                             Writer& to) const {
  const bool answer = role == Role::assistant;
  if (answer) {
    to.parts(generation_prompt_, false);
    to.parts(answer_prefix_, true);
  } else {
    to.parts(turn.prefix, false);
  }
  to.text(trim_ ? trimmed(content) : content, answer);
  // The first mark ends the turn; without one the whole text does.
  bool ended = !answer;
  for (const Part& part : turn.suffix) {
    to.parts({part}, !ended);
    ended = ended || part.mark >= 0;
  }
}

void ChatEncoder::write(const Conversation& conversation, Writer& to) const {
  to.parts(begin_, false);
  const bool has_system = !conversation.empty() && conversation[0].role == Role::system;
  const auto& system = turns_[static_cast<size_t>(Role::system)];
  bool after_system = default_system_ && !has_system;
  if (after_system) write_turn(Role::system, *system, *default_system_, to);
  for (const Message& message : conversation) {
    const auto& of_role = turns_[static_cast<size_t>(message.role)];
    const bool special = message.role == Role::user && after_system && user_after_system_;
    if (!of_role) {
      fail<DataError>("chat_template", io::excerpt(name_), " has no form for the role ",
                      kRoleNames[static_cast<size_t>(message.role)],
                      "; give another --dataloader.chat_template");
    }
    write_turn(message.role, special ? *user_after_system_ : *of_role, message.content, to);
    after_system = message.role == Role::system;
  }
}

int64_t ChatEncoder::end_of_answer() const {
  for (const Part& part : turns_[static_cast<size_t>(Role::assistant)]->suffix)
    if (part.mark >= 0) return part.mark;
  return -1;
}

EncodedConversation ChatEncoder::encode(const Conversation& conversation) const {
  Writer writer(tokenizer_);
  write(conversation, writer);
  return writer.finish();
}

std::vector<int32_t> ChatEncoder::prompt(const Conversation& conversation) const {
  Writer writer(tokenizer_);
  write(conversation, writer);
  writer.parts(generation_prompt_, false);
  return writer.finish().ids;
}

}  // namespace tessera::train
