// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/tokenizer.h"

namespace tessera::train {

std::vector<int64_t> ByteTokenizer::encode(std::string_view text) {
  std::vector<int64_t> tokens;
  tokens.reserve(text.size());
  for (char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string ByteTokenizer::decode(std::span<const int64_t> tokens) {
  std::string text;
  for (int64_t t : tokens) {
    if (t >= 0 && t < 256) text += static_cast<char>(t);
  }
  return text;
}

namespace {
// Bytes of the UTF-8 character at the front of `text`; 0 if it is not one.
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
  const bool c1_control = c == 0xC2 && at(1) < 0xA0;
  return overlong || surrogate || beyond || c1_control ? 0 : n;
}
}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t n = utf8_length(text);
    const auto c = static_cast<unsigned char>(text[0]);
    if (n == 0) out += "\xEF\xBF\xBD";
    else if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F) out += '.';
    else out += text.substr(0, n);
    text.remove_prefix(n == 0 ? 1 : n);
  }
  return out;
}

}  // namespace tessera::train
