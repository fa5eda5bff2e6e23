// SPDX-License-Identifier: Apache-2.0
// Scans along a dim on CPU: y[i] joins x[0] to x[i]. Along the last dim, blocks do not wait for the
// last one; along another, columns are independent and go as vectors. Join: static start() and
// join(a, b) of accumulators, f64 for floats and unsigned for integers, which wrap around.
#pragma once

#include "tessera/core/op.h"
#include "tessera/core/parallel.h"

#include <algorithm>
#include <type_traits>

namespace tessera::scan {

template <class T> using wide_t = std::conditional_t<is_floating(dtype_of<T>), double, uint64_t>;

/// A tensor seen as (outer, n, inner) around the dim `own`; a 0-dim one as (1, 1, 1).
struct Lines {
  int64_t outer = 1, n = 1, inner = 1;
  Lines(const Shape& shape, int own) {
    for (int d = 0; d < shape.rank(); ++d) (d < own ? outer : d == own ? n : inner) *= shape[d];
  }
};

/// Shares the lines out: row(at) for each row of n neighbours from element `at` on where the dim is
/// the last, else columns(at, count) for blocks of neighbouring columns whose rows lie `inner`
/// apart.
template <class Row, class Columns>
void for_each_line(const Lines& l, const Row& row, const Columns& columns) {
  constexpr int64_t kGrain = 16384, kWidth = 256;
  if (l.outer * l.n * l.inner == 0) return;
  if (l.inner == 1) {
    parallel_for(l.outer, std::max<int64_t>(1, kGrain / l.n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) row(r * l.n);
    });
    return;
  }
  const int64_t width = std::min(l.inner, kWidth), blocks = (l.inner + width - 1) / width;
  parallel_for(l.outer * blocks, std::max<int64_t>(1, kGrain / (l.n * width)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t task = begin; task < end; ++task) {
                   const int64_t column = task % blocks * width;
                   columns(task / blocks * l.n * l.inner + column,
                           std::min(width, l.inner - column));
                 }
               });
}
inline constexpr int64_t kMostColumns = 256;  // that for_each_line gives at once

// Goes on from `carry`; x may be y.
template <class Join, class C, class A>
TESSERA_INLINE void blocks(const C* x, C* y, int64_t n, A& carry) {
  constexpr int64_t kBlock = 8;
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    A part[kBlock];
    part[0] = static_cast<A>(x[i]);
    for (int64_t j = 1; j < kBlock; ++j)
      part[j] = Join::join(part[j - 1], static_cast<A>(x[i + j]));
    for (int64_t j = 0; j < kBlock; ++j) y[i + j] = static_cast<C>(Join::join(carry, part[j]));
    carry = Join::join(carry, part[kBlock - 1]);
  }
  for (; i < n; ++i) {
    carry = Join::join(carry, static_cast<A>(x[i]));
    y[i] = static_cast<C>(carry);
  }
}

// kStep is 1, or -1 with x and y at the last element. Narrow floats are converted, and turned rows
// turned, a piece at a time, so that this is done in vectors.
template <class Join, int64_t kStep, class T>
TESSERA_INLINE void along_row(const T* x, T* y, int64_t n) {
  using C = compute_t<T>;
  wide_t<T> carry = Join::start();
  if constexpr (std::is_same_v<C, T> && kStep == 1) {
    blocks<Join>(x, y, n, carry);
  } else {
    constexpr int64_t kPiece = 512;
    C piece[kPiece];
    for (int64_t i = 0; i < n; i += kPiece) {
      const int64_t count = std::min(kPiece, n - i);
      for (int64_t j = 0; j < count; ++j) piece[j] = static_cast<C>(x[(i + j) * kStep]);
      blocks<Join>(piece, piece, count, carry);
      for (int64_t j = 0; j < count; ++j) y[(i + j) * kStep] = static_cast<T>(piece[j]);
    }
  }
}

// Columns of one block, which lie side by side; rows are `stride` apart.
template <class Join, class T>
TESSERA_INLINE void along_columns(const T* x, T* y, int64_t n, int64_t stride, int64_t width) {
  using A = wide_t<T>;
  A carry[kMostColumns];
  for (int64_t c = 0; c < width; ++c) carry[c] = Join::start();
  for (int64_t j = 0; j < n; ++j, x += stride, y += stride) {
    for (int64_t c = 0; c < width; ++c) {
      carry[c] = Join::join(carry[c], static_cast<A>(static_cast<compute_t<T>>(x[c])));
      y[c] = static_cast<T>(static_cast<compute_t<T>>(carry[c]));
    }
  }
}

/// y = the scan of x by Join<A> along the dim, from its end where `reverse`.
template <template <class> class Join, DTypeSet kSet>
void scan(const Tensor& x, const Tensor& y, int own, bool reverse) {
  const Lines l(x.shape(), own);
  dispatch<kSet>(x.dtype(), [&]<class T>() {
    using J = Join<wide_t<T>>;
    const T* from = x.data<T>();
    T* to = y.data<T>();
    const int64_t last = (l.n - 1) * l.inner;
    for_each_line(
        l,
        [&](int64_t at) {
          simd([&]() TESSERA_LAMBDA {
            if (reverse) along_row<J, -1>(from + at + last, to + at + last, l.n);
            else along_row<J, 1>(from + at, to + at, l.n);
          });
        },
        [&](int64_t at, int64_t columns) {
          const int64_t first = reverse ? at + last : at, stride = reverse ? -l.inner : l.inner;
          simd([&]() TESSERA_LAMBDA {
            along_columns<J>(from + first, to + first, l.n, stride, columns);
          });
        });
  });
}

/// The rule of an op on x (and more inputs) of one shape that works along `own`, which is whole.
inline ShardingRule rule_along(const Shape& shape, int own, int inputs, int outputs) {
  ShardingRule r;
  SmallVector<DimFactor, kMaxRank> dims;
  for (int d = 0; d < shape.rank(); ++d) {
    dims.push_back({static_cast<int16_t>(r.add_factor(shape[d])), 1});
    if (d == own) r.replicate_factor(dims.back().factor);
  }
  for (int i = 0; i < inputs; ++i) r.operand(dims);
  r.outputs_from_here();
  for (int o = 0; o < outputs; ++o) r.operand(dims);
  return r;
}

}  // namespace tessera::scan
