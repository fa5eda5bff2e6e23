// SPDX-License-Identifier: Apache-2.0
// Products of groups of rows, each with a matrix of its own: the experts of a mixture. Groups are
// rows that follow each other, of any number each, also none, so nothing is padded and no size is
// read on the host of a device. grouped_mm and grouped_contract are each other's gradients.
#pragma once

#include "tessera/core/op.h"
#include "tessera/kernels/pointwise/index_dtype.h"

namespace tessera {
namespace op {

/// What one rank has of a grouped product: which of all rows and of all groups.
struct GroupedPiece {
  int64_t first_row = 0, rows = -1;      // rows: of the whole; -1: as many as there are
  int64_t first_group = 0, groups = -1;  // groups: of the piece; -1: as many as offsets has
};

/// x (M, K), w (E, N, K) (transpose) or (E, K, N), offsets i64 (E): the end of each group's rows,
/// the first of which begins at row 0 -> (M, N): row m times the matrix of its group. Rows beyond
/// the last offset are zero.
struct GroupedMM {
  bool transpose = true;
  GroupedPiece piece = {};  // no attribute: `local` sets it
  static constexpr std::string_view name = "grouped_mm";
  static constexpr bool expensive = true;
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::inputs();
  auto attributes() const { return std::tie(transpose); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  GroupedMM local(const Piece& p) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  Cost cost(Metas in, Metas out) const;
  static std::vector<Sample<GroupedMM>> samples();
};

/// a (M, P), b (M, Q), offsets i64 (E), like (E, P, Q) (optional) -> (E, P, Q): the sum of the
/// outer products of each group's rows; of no rows zero. `like` is not read: it says how the
/// groups are cut, so that the gradient of cut experts is cut.
struct GroupedContract {
  GroupedPiece piece = {};  // no attribute: `local` sets it
  static constexpr std::string_view name = "grouped_contract";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::input(0, 1, 2);
  auto attributes() const { return std::tie(); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  GroupedContract local(const Piece& p) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  Cost cost(Metas in, Metas out) const;
  static std::vector<Sample<GroupedContract>> samples();
};

using grouped_mm_ops = OpList<GroupedMM, GroupedContract>;

}  // namespace op

/// x (M, K) times the transposed weight (E, N, K) of each row's group, plus its bias (E, N) if
/// given: (M, N). offsets (E) of i64 or i32 are the ends of the groups' rows; rows beyond the last
/// are zero. Sums are of f32 (f64 for f64). ValueError for offsets that decrease or leave 0 to M
/// (on CUDA, where a kernel cannot throw, offsets are clamped, and rows of those that decrease are
/// undefined).
TESSERA_API Tensor grouped_mm(const Tensor& x, const Tensor& w, const Tensor& offsets,
                              const Tensor& bias = {});

}  // namespace tessera
