// SPDX-License-Identifier: Apache-2.0
// Tables of the Unicode character database, generated.
#pragma once

#include <cstdint>
#include <span>

namespace tessera::train::unicode {

/// Names of the general categories, in the order of their numbers in the table.
inline constexpr const char* kCategoryNames[] = {
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

/// Runs of code points of one category, sorted: first code point << 5 | number of the category.
std::span<const uint32_t> category_runs();
/// Runs of code points of one canonical combining class: first code point << 8 | class.
std::span<const uint32_t> class_runs();

/// A canonical decomposition into one (second is 0) or two code points.
struct Decomposition {
  uint32_t whole, first, second;
};
/// Characters of which the two parts compose to the whole again, sorted by the whole.
std::span<const Decomposition> composed();
/// Characters that only decompose, sorted.
std::span<const Decomposition> never_composed();

}  // namespace tessera::train::unicode
