// SPDX-License-Identifier: Apache-2.0
// UTF-8: how long a character is, and where a text stops being text.
#pragma once

#include "tessera/core/api.h"

#include <cstddef>
#include <string_view>

namespace tessera::io {

/// Bytes of the character at the front of `text`, which is not empty; 0 if it is not one (cut,
/// overlong, a surrogate or beyond U+10FFFF).
TESSERA_API size_t utf8_length(std::string_view text);
/// Offset of the first byte that begins no character; npos if `text` is UTF-8 throughout.
TESSERA_API size_t first_invalid_utf8(std::string_view text);

}  // namespace tessera::io
