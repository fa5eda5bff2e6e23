// SPDX-License-Identifier: Apache-2.0
// Copying elements between strided tensors of one dtype, for rooms that move bytes (cat, slice_pad)
// or that want a row-major operand. Elements are copied as bytes, so all dtypes share one loop per
// item size.
#pragma once

#include "tessera/core/parallel.h"
#include "tessera/kernels/loop_nest_impl.h"

#include <cstring>

namespace tessera {

namespace detail {

template <class Bits> void copy_elements(const Tensor& to, const Tensor& from) {
  constexpr int64_t kGrain = 65536 / static_cast<int64_t>(sizeof(Bits));
  const int64_t total = to.numel();
  auto* y = static_cast<Bits*>(to.raw_data());
  const auto* x = static_cast<const Bits*>(from.raw_data());
  const LoopNest<2> nest(to.shape(), {&to, &from});
  const int last = nest.shape.rank() - 1;
  const int64_t n = nest.shape[last], rows = total / n;
  const int64_t sy = nest.strides[0][last], sx = nest.strides[1][last];
  const int64_t cuts = rows >= 8 ? 1 : (n + kGrain - 1) / kGrain, piece = (n + cuts - 1) / cuts;
  parallel_for(rows * cuts, std::max<int64_t>(1, kGrain / piece), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const auto at = nest.row_offsets(task / cuts);
      const int64_t first = task % cuts * piece, count = std::min(piece, n - first);
      if (count <= 0) continue;
      Bits* row = y + at[0] + first * sy;
      const Bits* source = x + at[1] + first * sx;
      if (sy == 1 && sx == 1) {
        std::memcpy(row, source, static_cast<size_t>(count) * sizeof(Bits));
      } else {
        for (int64_t i = 0; i < count; ++i) row[i * sy] = source[i * sx];
      }
    }
  });
}

}  // namespace detail

/// to = from; of one dtype and shape.
inline void strided_copy(const Tensor& to, const Tensor& from) {
  if (to.dtype() != from.dtype() || !(to.shape() == from.shape())) {
    fail<UsageError>("strided_copy", "expected two tensors alike: given ", to.meta(), " and ",
                     from.meta());
  }
  if (to.numel() == 0) return;
  switch (item_size(to.dtype())) {
    case 1: return detail::copy_elements<uint8_t>(to, from);
    case 2: return detail::copy_elements<uint16_t>(to, from);
    case 4: return detail::copy_elements<uint32_t>(to, from);
    default: return detail::copy_elements<uint64_t>(to, from);
  }
}

/// x itself when it is row-major, else a copy that is; not recorded.
inline Tensor row_major(const Tensor& x) {
  if (x.is_contiguous()) return x;
  Tensor y = empty(x.shape(), x.dtype());
  strided_copy(y, x);
  return y;
}

}  // namespace tessera
