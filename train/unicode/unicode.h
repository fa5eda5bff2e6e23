// SPDX-License-Identifier: Apache-2.0
// Characters as numbers: UTF-8 back and forth, sets of characters by general category, and the
// canonical composition NFC.
#pragma once

#include "tessera/core/api.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::train::unicode {

constexpr uint32_t kEnd = 0x110000;        ///< beyond the last code point
constexpr uint32_t kReplacement = 0xFFFD;  ///< stands for a byte that is not UTF-8

struct Character {
  uint32_t point;
  uint32_t bytes;  ///< 1 for a byte that is not UTF-8
};
/// The character that begins at `at` of `text`, below its size.
Character character_at(std::string_view text, size_t at);
/// Start of the character that ends at `end`, above 0, of `text`.
size_t previous(std::string_view text, size_t end);
/// Appends the UTF-8 of a code point.
void append(std::string& text, uint32_t point);

/// Sorted, disjoint half-open ranges of code points.
using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;
/// Sorts and joins ranges in any order.
Ranges normalised(Ranges ranges);
Ranges complement(const Ranges& ranges);
/// Both arguments normalised.
Ranges intersection(const Ranges& a, const Ranges& b);
/// Characters of a general category (`Lu`) or of all categories of a letter (`L`); empty if there
/// is none of that name.
Ranges category(std::string_view name);
/// White space: the property White_Space, which `\s` of regular expressions means.
Ranges white_space();

/// A set of characters with a fast look-up.
class CharSet {
 public:
  CharSet() = default;
  explicit CharSet(const Ranges& ranges);
  [[nodiscard]] bool contains(uint32_t point) const {
    if (point < 128) return ascii_[point];
    return blocks_[pages_[point >> 8]][(point >> 6) & 3] >> (point & 63) & 1;
  }

 private:
  std::array<bool, 128> ascii_{};
  std::vector<uint16_t> pages_;  // block of each 256 code points
  std::vector<std::array<uint64_t, 4>> blocks_;
};

/// Makes text canonical: NFC.
class Composer {
 public:
  Composer();
  /// The composed text; bytes that are not UTF-8 stay.
  [[nodiscard]] std::string nfc(std::string_view text) const;

 private:
  [[nodiscard]] uint32_t combining_class(uint32_t point) const;
  void decompose(uint32_t point, std::vector<uint32_t>& out) const;
  [[nodiscard]] uint32_t compose(uint32_t first, uint32_t second) const;  // 0: they do not
  void compose_part(std::string_view part, std::string& out) const;

  CharSet unstable_;                              // may change, or change what precedes
  std::unordered_map<uint64_t, uint32_t> pairs_;  // first << 32 | second, to the whole
};

}  // namespace tessera::train::unicode
