// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/data/tokenizer.h"

#include "tessera/nn/io/utf8.h"

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

void ByteTokenizer::append(std::string_view text, std::vector<int32_t>& tokens) const {
  const size_t before = tokens.size();
  tokens.resize(before + text.size());  // grows by factors, where reserve would not
  for (size_t i = 0; i < text.size(); ++i) tokens[before + i] = static_cast<unsigned char>(text[i]);
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto c = static_cast<unsigned char>(text[0]);
    const bool control = c == 0xC2 && text.size() > 1 && static_cast<unsigned char>(text[1]) < 0xA0;
    const size_t n = control ? 0 : io::utf8_length(text);
    if (n == 0) out += "\xEF\xBF\xBD";
    else if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F) out += '.';
    else out += text.substr(0, n);
    text.remove_prefix(n == 0 ? 1 : n);
  }
  return out;
}

}  // namespace tessera::train
