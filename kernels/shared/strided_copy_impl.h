// SPDX-License-Identifier: Apache-2.0
// Copying elements between strided tensors of one dtype, for rooms that move bytes (cat, slice_pad)
// or that want a row-major operand. Elements are copied as bytes, so all dtypes share one loop per
// item size.
#pragma once

#include "tessera/core/parallel.h"
#include "tessera/kernels/shared/loop_nest_impl.h"

#include <cstring>

namespace tessera {

namespace detail {

/// Element offsets of two operands, row after row of the outer dims of `nest`, without dividing.
class RowWalk {
 public:
  std::array<int64_t, 2> at;

  RowWalk(const LoopNest<2>& nest, int64_t row) : at(nest.row_offsets(row)), nest_(nest) {
    for (int d = nest.shape.rank() - 2; d >= 0; --d) {
      place_[static_cast<size_t>(d)] = row % nest.shape[d];
      row /= nest.shape[d];
    }
  }
  void next() {
    for (int d = nest_.shape.rank() - 2; d >= 0; --d) {
      int64_t& place = place_[static_cast<size_t>(d)];
      const bool over = ++place == nest_.shape[d];
      const int64_t steps = over ? 1 - nest_.shape[d] : 1;
      for (size_t o = 0; o < 2; ++o) at[o] += steps * nest_.strides[o][d];
      if (!over) return;
      place = 0;
    }
  }

 private:
  const LoopNest<2>& nest_;
  std::array<int64_t, kMaxRank> place_{};
};

// Source rows of a block are a cache line wide, and read once; what is written goes by way of a
// block that lies together, since powers of two between rows would push each other out of the
// cache.
template <class Bits> struct TransposeBlock {
  static constexpr int64_t kWide = 256 / static_cast<int64_t>(sizeof(Bits)), kLong = 64;
  Bits held[kWide][kLong];

  void copy(const Bits* x, int64_t x_step, Bits* y, int64_t y_step, int64_t wide, int64_t length) {
    if (wide == kWide) {
      for (int64_t j = 0; j < length; ++j) {
        for (int64_t i = 0; i < kWide; ++i) held[i][j] = x[j * x_step + i];
      }
    } else {
      for (int64_t j = 0; j < length; ++j) {
        for (int64_t i = 0; i < wide; ++i) held[i][j] = x[j * x_step + i];
      }
    }
    for (int64_t i = 0; i < wide; ++i)
      std::memcpy(y + i * y_step, held[i], static_cast<size_t>(length) * sizeof(Bits));
  }
};

/// y is dense along the last dim, x along dim `dense`.
template <class Bits>
void copy_transposed(Bits* y, const Bits* x, const LoopNest<2>& nest, int dense) {
  using Square = TransposeBlock<Bits>;
  constexpr int64_t kPiece = 4 * Square::kLong;  // of the last dim, for one task
  const int last = nest.shape.rank() - 1;
  const int64_t wide = nest.shape[dense], n = nest.shape[last];
  const int64_t strips = (wide + Square::kWide - 1) / Square::kWide,
                pieces = (n + kPiece - 1) / kPiece;
  const int64_t outer = nest.shape.numel() / (wide * n);
  const int64_t y_step = nest.strides[0][dense], x_step = nest.strides[1][last];
  parallel_for(outer * strips * pieces, 1, [&](int64_t begin, int64_t end) {
    Square block;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % pieces * kPiece, strip = task / pieces % strips * Square::kWide;
      const int64_t stop = std::min(n, first + kPiece), own = std::min(Square::kWide, wide - strip);
      int64_t rest = task / pieces / strips, to = strip * y_step, from = strip;
      for (int d = last - 1; d >= 0; --d) {
        if (d == dense) continue;
        to += rest % nest.shape[d] * nest.strides[0][d];
        from += rest % nest.shape[d] * nest.strides[1][d];
        rest /= nest.shape[d];
      }
      for (int64_t j = first; j < stop; j += Square::kLong)
        block.copy(x + from + j * x_step, x_step, y + to + j, y_step, own,
                   std::min(Square::kLong, stop - j));
    }
  });
}

template <class Bits> void copy_elements(const Tensor& to, const Tensor& from) {
  constexpr int64_t kGrain = 65536 / static_cast<int64_t>(sizeof(Bits)), kLeast = 8;
  const int64_t total = to.numel();
  auto* y = static_cast<Bits*>(to.raw_data());
  const auto* x = static_cast<const Bits*>(from.raw_data());
  const LoopNest<2> nest(to.shape(), {&to, &from});
  const int last = nest.shape.rank() - 1;
  const int64_t n = nest.shape[last], rows = total / n;
  const int64_t sy = nest.strides[0][last], sx = nest.strides[1][last];
  for (int d = 0; d < last; ++d) {
    const bool across = sy == 1 && sx != 1 && nest.strides[1][d] == 1;
    if (across && n >= kLeast && nest.shape[d] >= kLeast) return copy_transposed(y, x, nest, d);
  }
  const int64_t cuts = rows >= 8 ? 1 : (n + kGrain - 1) / kGrain, piece = (n + cuts - 1) / cuts;
  parallel_for(rows * cuts, std::max<int64_t>(1, kGrain / piece), [&](int64_t begin, int64_t end) {
    RowWalk walk(nest, begin / cuts);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % cuts * piece, count = std::min(piece, n - first);
      Bits* row = y + walk.at[0] + first * sy;
      const Bits* source = x + walk.at[1] + first * sx;
      if (count > 0 && sy == 1 && sx == 1) {
        std::memcpy(row, source, static_cast<size_t>(count) * sizeof(Bits));
      } else {
        for (int64_t i = 0; i < count; ++i) row[i * sy] = source[i * sx];
      }
      if ((task + 1) % cuts == 0) walk.next();
    }
  });
}

}  // namespace detail

/// to = from; of one dtype and shape.
inline void strided_copy(const Tensor& to, const Tensor& from) {
  if (to.dtype() != from.dtype() || !(to.shape() == from.shape())) {
    fail<UsageError>("strided_copy", "expected two tensors of one shape and dtype: given ",
                     to.meta(), " and ", from.meta());
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
