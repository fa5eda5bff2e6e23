// SPDX-License-Identifier: Apache-2.0
// What ops share whose index (..., m, ...) points along one dim of a tensor (..., n, ...): checks,
// sharding rule, and the CPU's loops. Outside that dim the index may be smaller; it then meets the
// first elements. Lines along the dim are independent of each other, so threads share them out;
// within a line the index is followed.
#pragma once

#include "tessera/core/op.h"
#include "tessera/core/parallel.h"
#include "tessera/kernels/shared/loop_nest_impl.h"

#include <algorithm>
#include <atomic>

namespace tessera {
namespace op {

/// The dim along which the index points.
inline int check_index(std::string_view name, int dim, const TensorMeta& x, const TensorMeta& index,
                       DTypeSet dtypes) {
  if (!dtypes.has(x.dtype)) fail<DTypeError>(name, "the input must be of ", dtypes, ": given ", x);
  if (index.dtype != DType::i64)
    fail<DTypeError>(name, "the index must be i64: given ", index, "; cast it");
  const int d = normalize_dim(dim, x.shape.rank(), name);
  bool fits = x.shape.rank() > 0 && index.shape.rank() == x.shape.rank();
  for (int i = 0; fits && i < x.shape.rank(); ++i) fits = i == d || index.shape[i] <= x.shape[i];
  if (!fits)
    fail<ShapeError>(name, "the index must have as many dims as the input, none but dim ", dim,
                     " larger than the input's: given ", x, " and ", index);
  return d;
}

/// Every dim but `dim` is one factor of all operands, where the index is as large as the input;
/// `along` gives the factor of `dim` in each operand. `left_out`: an optional input that is not
/// given.
inline ShardingRule line_rule(const Shape& shape, const Shape& index, int dim, ShardingRule r,
                              std::initializer_list<DimFactor> along, size_t inputs,
                              int left_out = -1) {
  std::vector<SmallVector<DimFactor, kMaxRank>> operands(along.size());
  for (int d = 0; d < shape.rank(); ++d) {
    const bool free = d != dim && shape[d] == index[d];
    const DimFactor f =
        free ? DimFactor{static_cast<int16_t>(r.add_factor(shape[d])), 1} : DimFactor{};
    for (size_t o = 0; o < operands.size(); ++o)
      operands[o].push_back(d == dim ? along.begin()[o] : f);
  }
  for (size_t o = 0; o < operands.size(); ++o) {
    if (o == inputs) r.outputs_from_here();
    if (static_cast<int>(o) == left_out) operands[o].clear();
    r.operand(operands[o]);
  }
  return r;
}

/// The rule of an op that writes into whole lines: x and the outputs have its factor n along the
/// dim, index and src its m; `whole` are those that must not be cut.
inline ShardingRule whole_lines(const Shape& shape, const Shape& index, int dim,
                                std::string_view whole = "n m") {
  ShardingRule r;
  (void)r.add_factor(shape[dim], 'n');
  (void)r.add_factor(index[dim], 'm');
  return r.replicate(whole);
}

inline constexpr int64_t kLineGrain = 16384;

/// Throws, before anything is written, where an index is outside [0, size).
inline void check_index_range(std::string_view name, const Tensor& index, int64_t size) {
  if (index.numel() == 0) return;
  const LoopNest<1> nest(index.shape(), {&index});
  const int last = nest.shape.rank() - 1;
  const int64_t n = nest.shape[last], rows = index.numel() / n, stride = nest.strides[0][last];
  const auto limit = static_cast<uint64_t>(size);
  const int64_t cuts = (n + kLineGrain - 1) / kLineGrain, piece = (n + cuts - 1) / cuts;
  std::atomic<bool> outside = false;
  parallel_for(rows * cuts, std::max<int64_t>(1, kLineGrain / piece),
               [&](int64_t begin, int64_t end) {
                 simd([&]() TESSERA_LAMBDA {
                   int64_t any = 0;
                   for (int64_t task = begin; task < end; ++task) {
                     const int64_t* at = index.data<int64_t>() + nest.row_offsets(task / cuts)[0];
                     const int64_t first = task % cuts * piece, stop = std::min(n, first + piece);
                     for (int64_t i = first; i < stop; ++i)
                       any |= static_cast<int64_t>(static_cast<uint64_t>(at[i * stride]) >= limit);
                   }
                   if (any) outside.store(true, std::memory_order_relaxed);
                 });
               });
  for (int64_t row = 0; outside && row < rows; ++row) {  // the first one
    const int64_t* at = index.data<int64_t>() + nest.row_offsets(row)[0];
    for (int64_t i = 0; i < n; ++i) {
      if (static_cast<uint64_t>(at[i * stride]) < limit) continue;
      fail<IndexError>(name, "index ", at[i * stride], " at position ", row * n + i,
                       " (row-major) of ", index.meta(), " is out of range: expected 0 to ",
                       size - 1);
    }
  }
}

}  // namespace op

/// A tensor without `dim`: where its lines along it start.
inline Tensor line_starts(const Tensor& x, const Shape& shape, int dim) {
  return alias(x, shape.without(dim), x.strides().without(dim), x.offset());
}

/// Lines along `dim` of a tensor y that an index points into, of that index, and of a tensor of the
/// index's shape; all with any strides.
struct IndexLines {
  LoopNest<3> nest;  // of the dims but `dim`: y, index, other
  int64_t m;
  std::array<int64_t, 3> step;  // along `dim`

  IndexLines(const Tensor& y, const Tensor& index, const Tensor& other, int dim)
      : IndexLines(line_starts(y, index.shape(), dim), line_starts(index, index.shape(), dim),
                   line_starts(other, index.shape(), dim), index.shape()[dim],
                   {y.strides()[dim], index.strides()[dim], other.strides()[dim]}) {}

  /// Calls f(offset of y's line, of the index, of the other) for each element of the index, those
  /// of a line in their order, or with kBackwards from the last one to the first.
  template <bool kBackwards = false, class F> void each(F f) const {
    const int last = nest.shape.rank() - 1;
    const int64_t columns = nest.shape[last], rows = nest.shape.numel() / columns;
    const std::array<int64_t, 3> across{nest.strides[0][last], nest.strides[1][last],
                                        nest.strides[2][last]};
    // The inner loop goes where the index lies closer together.
    const bool by_line = columns == 1 || step[1] < across[1];
    const int64_t width =
        std::min<int64_t>(columns, by_line ? std::max<int64_t>(1, kLeast / m) : kWidest);
    const int64_t blocks = (columns + width - 1) / width;
    parallel_for(rows * blocks, std::max<int64_t>(1, op::kLineGrain / (width * m)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t task = begin; task < end; ++task) {
                     const auto start = nest.row_offsets(task / blocks);
                     const int64_t first = task % blocks * width,
                                   stop = std::min(columns, first + width);
                     const auto at = [&](int64_t c, int64_t j) TESSERA_LAMBDA {
                       const int64_t k = kBackwards ? m - 1 - j : j;
                       f(start[0] + c * across[0], start[1] + c * across[1] + k * step[1],
                         start[2] + c * across[2] + k * step[2]);
                     };
                     if (by_line) {
                       for (int64_t c = first; c < stop; ++c) {
                         for (int64_t j = 0; j < m; ++j) at(c, j);
                       }
                     } else {
                       for (int64_t j = 0; j < m; ++j) {
                         for (int64_t c = first; c < stop; ++c) at(c, j);
                       }
                     }
                   }
                 });
  }

 private:
  static constexpr int64_t kWidest = 512, kLeast = 4096;  // elements of one task
  IndexLines(const Tensor& y, const Tensor& index, const Tensor& other, int64_t count,
             const std::array<int64_t, 3>& steps)
      : nest(index.shape(), {&y, &index, &other}), m(count), step(steps) {}
};

}  // namespace tessera
