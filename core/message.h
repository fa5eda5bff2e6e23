// SPDX-License-Identifier: Apache-2.0
// Parts of which errors, logs, traces and drawings are made: counts with their nouns, and the text
// of Context::module_path, which is also a part of random keys.
#pragma once

#include "tessera/core/error.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// The noun, given in the singular, as it follows the number n: `file`, `files`; `entries`,
/// `batches`, `axes`. For numbers that are printed in a form of their own.
[[nodiscard]] inline std::string noun_after(int64_t n, std::string_view noun) {
  struct Ending {
    std::string_view one, many;
  };
  // The first that fits.
  constexpr Ending kEndings[] = {{"ey", "eys"}, {"y", "ies"},   {"is", "es"}, {"s", "ses"},
                                 {"x", "xes"},  {"ch", "ches"}, {"", "s"}};
  std::string text(noun);
  if (n == 1) return text;
  for (const auto& [one, many] : kEndings) {
    if (!text.ends_with(one)) continue;
    text.replace(text.size() - one.size(), one.size(), many);
    break;
  }
  return text;
}

/// `1 file`, `2 files`: every count in a sentence.
template <class N> [[nodiscard]] std::string counted(N n, std::string_view noun) {
  return concat(n, ' ', noun_after(n == N(1) ? 1 : 0, noun));
}

/// The text as XML has it, control characters as spaces: for drawings.
[[nodiscard]] inline std::string xml_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

/// `layers.3.attention` of {"layers.3", "attention"}; a root has no name.
[[nodiscard]] inline std::string joined_path(const std::vector<std::string>& parts) {
  std::string path;
  for (const std::string& part : parts) {
    if (!path.empty() && !part.empty()) path += '.';
    path += part;
  }
  return path;
}

/// How errors end: ` (in layers.3.attention)`; nothing where the path is empty.
[[nodiscard]] inline std::string in_module(const std::string& path) {
  return path.empty() ? path : " (in " + path + ')';
}

}  // namespace tessera
