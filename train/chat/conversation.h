// SPDX-License-Identifier: Apache-2.0
// A line of a fine-tuning set, as untrusted input: a prompt with its completion, or the messages of
// a conversation. A prompt is what a user says and its completion what the assistant answers, so
// all that follows sees conversations alone.
#pragma once

#include "tessera/core/api.h"

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

enum class Role { system, user, assistant, tool };
/// As lines and templates write them.
inline constexpr std::array<std::string_view, 4> kRoleNames{"system", "user", "assistant", "tool"};

struct Message {
  Role role = Role::user;
  std::string content;  ///< UTF-8
  bool operator==(const Message&) const = default;
};
using Conversation = std::vector<Message>;

enum class LineForm {
  prompt_completion,  ///< {"prompt": "...", "completion": "..."}
  messages,           ///< {"messages": [{"role": "user", "content": "..."}, ...]}
};

struct Example {
  Conversation conversation;
  /// The names of members beside those of the form that say something: neither null nor empty. The
  /// caller decides which of them may be passed over.
  std::vector<std::string> others = {};
};

/// Reads a line. DataError, which begins with `place`: not UTF-8, not JSON, nested deeper than 32
/// levels, a name twice, a member of another type, an unknown role, no message or more than 65536,
/// a member of a message beside its role and content, which could change what it says.
[[nodiscard]] TESSERA_API Example parse_example(std::string_view line, LineForm form,
                                                std::string_view place);

}  // namespace tessera::train
