// SPDX-License-Identifier: Apache-2.0
// The byte tokenizer: a token per byte, and two that mark where a document begins and ends.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

class TESSERA_API ByteTokenizer {
 public:
  static constexpr int64_t kBegin = 256, kEnd = 257, kVocabulary = 258;
  /// The bytes alone, without marks.
  [[nodiscard]] static std::vector<int64_t> encode(std::string_view text);
  /// The bytes; marks and ids beyond the vocabulary give nothing.
  [[nodiscard]] static std::string decode(std::span<const int64_t> tokens);
};

/// Text for a terminal: control characters but tab and newline become '.', invalid UTF-8 the
/// replacement character.
TESSERA_API std::string printable(std::string_view text);

}  // namespace tessera::train
