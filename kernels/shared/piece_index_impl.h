// SPDX-License-Identifier: Apache-2.0
// Where the elements of a piece stand in the whole tensor, both row-major: for numbers that are
// keyed by the global element index. Plain data, so that it travels in a kernel's arguments. An op
// on such numbers has the attributes shape, whole and start; whole of rank 0: the shape.
#pragma once

#include "tessera/core/op_types.h"
#include "tessera/core/parallel.h"

#include <algorithm>
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

/// Calls run(number, i, n) for the runs of a piece of `total` elements: elements i .. i + n - 1 of
/// the piece are numbers number, number + 1, ... of the whole. Runs are shared among the threads.
template <class Run> void for_each_run(const PieceIndex& place, int64_t total, Run&& run) {
  constexpr int64_t kGrain = 16384;
  parallel_for(total, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin, n = 0; i < end; i += n) {
      n = std::min(place.left(i), end - i);
      run(place.global(i), i, n);
    }
  });
}

/// Throws where an op's shape at `start` does not lie inside `whole`.
template <class Op> void check_place(const Op& op) {
  if (op.whole.rank() == 0) return;
  bool fits = op.whole.rank() == op.shape.rank() && op.start.rank() == op.shape.rank();
  for (int d = 0; fits && d < op.shape.rank(); ++d)
    fits = op.start[d] >= 0 && op.shape[d] <= op.whole[d] - op.start[d];
  if (!fits)
    fail<ShapeError>(op.name, "a piece of shape ", op.shape, " at ", op.start,
                     " does not lie inside ", op.whole);
}

/// The op for a piece of its one output.
template <class Op> Op placed(Op op, const Piece& piece) {
  if (op.whole.rank() == 0) op.whole = op.shape;
  if (op.start.rank() == 0) op.start = Shape::filled(op.shape.rank(), 0);
  op.shape = piece.local_shape(0);
  for (int d = 0; d < op.shape.rank(); ++d) op.start[d] += piece.range(0, d).begin;
  return op;
}

/// The op whose dim 0 begins at row `row`, which a draw says; without dims it is the op itself.
template <class Op> Op at_row(Op op, int64_t row) {
  if (row == 0 || op.shape.rank() == 0) return op;
  op.start = Shape::filled(op.shape.rank(), 0);
  op.start[0] = row;
  op.whole = op.shape;
  op.whole[0] += row;
  return op;
}

/// Where the elements of an op's output stand in the whole.
template <class Op> PieceIndex place_of_output(const Op& op) {
  return op.whole.rank() ? PieceIndex(op.shape, op.start, op.whole) : PieceIndex(op.shape.numel());
}

}  // namespace tessera
