// SPDX-License-Identifier: Apache-2.0
// Where the elements of a piece stand in the whole tensor, both row-major: for numbers that are
// keyed by the global element index. Plain data, so that it travels in a kernel's arguments.
#pragma once

#include "tessera/core/shape.h"

#include <cstdint>

namespace tessera {

struct PieceIndex {
  int64_t run = 1;  // elements that follow each other in the piece and in the whole
  int64_t base = 0;
  int rank = 0;  // of the dims around the runs
  int64_t sizes[kMaxRank] = {}, strides[kMaxRank] = {};

  PieceIndex() = default;
  /// All of a tensor of n elements.
  explicit PieceIndex(int64_t n) : run(n > 0 ? n : 1) {}
  /// The piece of shape `local` at `start` in a tensor of shape `whole`.
  PieceIndex(const Shape& local, const Shape& start, const Shape& whole) {
    const Shape step = contiguous_strides(whole);
    int d = whole.rank() - 1;
    for (; d >= 0 && local[d] == whole[d]; --d) run *= whole[d];
    if (d >= 0) {
      base = start[d] * step[d];
      run *= local[d];
      --d;
    }
    rank = d + 1;
    for (int i = 0; i <= d; ++i) {
      sizes[i] = local[i];
      strides[i] = step[i];
      base += start[i] * step[i];
    }
    if (run < 1) run = 1;  // of nothing
  }
  /// The place in the whole of element i of the piece.
  [[nodiscard]] TESSERA_HD uint64_t global(int64_t i) const {
    int64_t at = base + i % run, rest = i / run;
    for (int d = rank - 1; d >= 0; --d) {
      at += rest % sizes[d] * strides[d];
      rest /= sizes[d];
    }
    return static_cast<uint64_t>(at);
  }
  /// How many elements from i on follow each other in the whole, too.
  [[nodiscard]] int64_t left(int64_t i) const { return run - i % run; }
};

}  // namespace tessera
