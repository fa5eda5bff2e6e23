// SPDX-License-Identifier: Apache-2.0
// Chat templates: how a conversation is written for a model. A template is data and runs no code: a
// JSON object with, for each role, what stands before and after a message.
//
//   "begin"              before the conversation
//   "roles"              {"user": {"prefix": ..., "suffix": ...}, ...} of system, user, assistant,
//                        tool; and user_after_system, for a user's message right after a system's
//   "generation_prompt"  what a model is given to answer; the beginning of the assistant's prefix,
//                        and all of it if it is not given
//   "default_system"     the system's message of a conversation that begins with none
//   "trim"               true: without the white space around each message
//
// "begin", a prefix, a suffix and "generation_prompt" are lists: a string is text, {"mark": NAME} a
// special token of the tokenizer by its name, {"own_mark": "begin"} or {"own_mark": "end"} the mark
// that begins or ends the tokenizer's documents, nothing if it has none.
#pragma once

#include "tessera/core/api.h"
#include "tessera/train/chat/conversation.h"

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

struct TemplatePart {
  enum class Kind { text, mark, begin_mark, end_mark };
  Kind kind = Kind::text;
  std::string text;  ///< or the name of the mark
  bool operator==(const TemplatePart&) const = default;
};
using TemplateText = std::vector<TemplatePart>;

struct ChatTemplate {
  struct Turn {
    TemplateText prefix, suffix;
  };
  std::string name;  ///< for errors
  TemplateText begin;
  std::array<std::optional<Turn>, kRoleNames.size()> turns;  ///< by role
  std::optional<Turn> user_after_system;
  TemplateText generation_prompt;
  /// What the assistant's prefix has behind the generation prompt: the model writes it.
  TemplateText answer_prefix;
  std::optional<std::string> default_system;
  bool trim = false;
};

/// Reads the JSON of a template as untrusted input. DataError, which names `name` and the key: not
/// JSON, of another type, an unknown key or role, a generation prompt that does not begin the
/// assistant's prefix, no form of user or assistant, more than 64 KiB.
[[nodiscard]] TESSERA_API ChatTemplate parse_chat_template(std::string_view json, std::string name);

/// `plain, chatml, ...`: the built-in templates.
[[nodiscard]] TESSERA_API std::string chat_template_names();

/// The file that this names; empty: a built-in template.
[[nodiscard]] TESSERA_API std::string chat_template_file(const std::string& name_or_file);

/// The built-in template of this name, or that of a file. ConfigError, with the names, if there is
/// neither; DataError as parse_chat_template; IoError: the file cannot be read. Errors name
/// `field`.
[[nodiscard]] TESSERA_API ChatTemplate find_chat_template(const std::string& name_or_file,
                                                          const std::string& field);

}  // namespace tessera::train
