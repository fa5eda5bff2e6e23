// SPDX-License-Identifier: Apache-2.0
// Which examples share a row. Best fit, the longest first: each goes to the fullest row that still
// has room, so that little of a row stays empty, and no example is cut. A function of the lengths
// alone, so that every rank has the same rows.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::train {

struct Packing {
  std::vector<int64_t> examples;  ///< of all rows, one row behind the other
  std::vector<int64_t> ends;      ///< of each row, in `examples`
  [[nodiscard]] int64_t rows() const { return static_cast<int64_t>(ends.size()); }
  /// Of row `row`, ascending.
  [[nodiscard]] std::span<const int64_t> row(int64_t row) const {
    const auto at = static_cast<size_t>(row);
    const int64_t begin = at == 0 ? 0 : ends[at - 1];
    return std::span(examples).subspan(static_cast<size_t>(begin),
                                       static_cast<size_t>(ends[at] - begin));
  }
};

/// Packs examples of these lengths, each in [1, capacity], into rows of `capacity`. Rows are in the
/// order of their first examples.
[[nodiscard]] TESSERA_API Packing pack_best_fit(std::span<const int64_t> lengths, int64_t capacity);

}  // namespace tessera::train
