// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/io/utf8.h"

#include <cstdint>
#include <cstring>

namespace tessera::io {

size_t utf8_length(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char c = at(0);
  const size_t n = c < 0x80                ? 1
                   : c >= 0xC2 && c < 0xE0 ? 2
                   : c >= 0xE0 && c < 0xF0 ? 3
                   : c >= 0xF0 && c < 0xF5 ? 4
                                           : 0;
  if (n == 0 || n > text.size()) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (c == 0xE0 && at(1) < 0xA0) || (c == 0xF0 && at(1) < 0x90);
  const bool surrogate = c == 0xED && at(1) >= 0xA0, beyond = c == 0xF4 && at(1) >= 0x90;
  return overlong || surrogate || beyond ? 0 : n;
}

size_t first_invalid_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    // Most text is ASCII, so eight bytes are looked at together.
    if (uint64_t eight = 0; text.size() - i >= sizeof eight) {
      std::memcpy(&eight, text.data() + i, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        i += sizeof eight;
        continue;
      }
    }
    const size_t n = utf8_length(text.substr(i));
    if (n == 0) return i;
    i += n;
  }
  return std::string_view::npos;
}

std::string excerpt(std::string_view text, size_t most) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (size_t shown = 0; !text.empty(); ++shown) {
    if (shown == most) return out + "...";
    const auto c = static_cast<unsigned char>(text[0]);
    // U+0080 to U+009F control terminals as the ones below U+0020 do.
    const bool control =
        c < 0x20 || c == 0x7F ||
        (c == 0xC2 && text.size() > 1 && static_cast<unsigned char>(text[1]) < 0xA0);
    const size_t n = control ? 0 : utf8_length(text);
    if (n > 0) out += text.substr(0, n);
    else if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (c == '\r') out += "\\r";
    else out += {'\\', 'x', kDigits[c >> 4], kDigits[c & 15]};
    text.remove_prefix(n == 0 ? 1 : n);
  }
  return out;
}

std::string message_lines(std::string_view message) {
  std::string out;
  for (;;) {
    const std::string_view line = message.substr(0, message.find("\n  "));
    out += excerpt(line, line.npos);
    if (line.size() == message.size()) return out;
    out += '\n';
    message.remove_prefix(line.size() + 1);
  }
}

}  // namespace tessera::io
