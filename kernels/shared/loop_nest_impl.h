// SPDX-License-Identifier: Apache-2.0
// Loops over strided operands, for CPU and CUDA kernels: broadcast strides, with adjacent dims
// merged.
#pragma once

#include "tessera/core/tensor.h"

#include <array>

namespace tessera {

/// Strides of N operands over a common shape, innermost dim last, with adjacent dims merged where
/// possible.
template <size_t N> struct LoopNest {
  Shape shape;
  std::array<Shape, N> strides;

  LoopNest(const Shape& full, const std::array<const Tensor*, N>& operands) {
    std::array<Shape, N> s;
    for (size_t o = 0; o < N; ++o) {
      const Tensor& t = *operands[o];
      const int lead = full.rank() - t.rank();
      for (int d = 0; d < full.rank(); ++d) {
        const bool broadcast = d < lead || (t.shape()[d - lead] == 1 && full[d] != 1);
        s[o].push_back(broadcast ? 0 : t.strides()[d - lead]);
      }
    }
    for (int d = 0; d < full.rank(); ++d) {
      if (full[d] == 1) continue;
      const int last = shape.rank() - 1;
      bool merge = last >= 0;
      for (size_t o = 0; merge && o < N; ++o) merge = strides[o][last] == s[o][d] * full[d];
      if (merge) {
        shape[last] *= full[d];
        for (size_t o = 0; o < N; ++o) strides[o][last] = s[o][d];
      } else {
        shape.push_back(full[d]);
        for (size_t o = 0; o < N; ++o) strides[o].push_back(s[o][d]);
      }
    }
    if (shape.rank() == 0) {
      shape.push_back(1);
      for (size_t o = 0; o < N; ++o) strides[o].push_back(0);
    }
  }

  /// Element offsets of the operands at row `row` of the outer dims.
  [[nodiscard]] std::array<int64_t, N> row_offsets(int64_t row) const {
    std::array<int64_t, N> at{};
    for (int d = shape.rank() - 2; d >= 0; --d) {
      const int64_t i = row % shape[d];
      row /= shape[d];
      for (size_t o = 0; o < N; ++o) at[o] += i * strides[o][d];
    }
    return at;
  }
};

}  // namespace tessera
