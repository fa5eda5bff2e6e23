// SPDX-License-Identifier: Apache-2.0
// UTF-8: length of a character, position of the first invalid byte, and untrusted text as error
// messages show it.
#pragma once

#include "tessera/core/api.h"

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::io {

/// Bytes of the character at the front of `text`, which is not empty; 0 if it is not one (cut,
/// overlong, a surrogate or beyond U+10FFFF).
TESSERA_API size_t utf8_length(std::string_view text);
/// Offset of the first byte that begins no character; npos if `text` is UTF-8 throughout.
TESSERA_API size_t first_invalid_utf8(std::string_view text);
/// Untrusted text as an error message quotes it: on one line, control characters and bytes that are
/// not UTF-8 as `\n`, `\t`, `\r` or `\x1b`, cut to `most` characters with `...` behind them.
TESSERA_API std::string excerpt(std::string_view text, size_t most = 200);
/// An error's whole message to be printed, each of its lines as excerpt shows it. Lines after the
/// first begin with two spaces, as our messages do; any other newline comes from a text that the
/// message quotes, and is shown as `\n`, so that no part of a message passes for another one.
TESSERA_API std::string message_lines(std::string_view message);

}  // namespace tessera::io
