// SPDX-License-Identifier: Apache-2.0
// index_select and index_add: whole slices of a dim by a list of their places, each other's
// gradient. index_add adds in the order of the index: the same bits on every run.
#pragma once

#include "tessera/core/op.h"
#include "tessera/kernels/pointwise/index_dtype.h"

#include <optional>

namespace tessera {
namespace op {

/// x (..., n, ...), index i64 (m) -> (..., m, ...): y[..., j, ...] = x[..., index[j], ...].
struct IndexSelect {
  int dim = 0;
  static constexpr std::string_view name = "index_select";
  static constexpr DTypeSet dtypes = kNumbers | dtypes_of(DType::u8, DType::bool_);
  static constexpr Saves saves = Saves::input(1);
  auto attributes() const { return std::tie(dim); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<IndexSelect>> samples();
};

/// Inputs x (..., n, ...), index i64 (m), src (..., m, ...): y = x, then y[..., index[j], ...] +=
/// src[..., j, ...]. x may be left out: it is then zero, of `size` along dim (else 0); cuts of j
/// are then sums to be added up.
struct IndexAdd {
  int dim = 0;
  int64_t size = 0;
  static constexpr std::string_view name = "index_add";
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::input(1);
  auto attributes() const { return std::tie(dim, size); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<IndexAdd>> samples();
};

using index_select_ops = OpList<IndexSelect, IndexAdd>;

}  // namespace op

/// x (..., n, ...), index (m) of i64 or i32 -> (..., m, ...). IndexError for an index outside 0 to
/// n - 1 (on CUDA its slice is NaN: a kernel cannot throw), DTypeError for another index.
inline Tensor index_select(const Tensor& x, int dim, const Tensor& index) {
  return call(op::IndexSelect{dim}, {x, as_index(index)});
}
/// x (..., n, ...) plus the slices of src (..., m, ...) at the places index (m) along `dim`; equal
/// places add up in the order of the index, narrow floats in f32 and rounded once. Errors as
/// index_select's (on CUDA a slice outside is dropped).
inline Tensor index_add(const Tensor& x, int dim, const Tensor& index, const Tensor& src) {
  return call(op::IndexAdd{dim, 0}, {x, as_index(index), src});
}
/// The same onto zeros of `size` along dim: the gradient of index_select.
inline Tensor index_zeros(int64_t size, int dim, const Tensor& index, const Tensor& src) {
  return call(op::IndexAdd{dim, size}, {Tensor(), as_index(index), src});
}
/// Element i of `dim` counts[i] times in a row: (a, b, c) by (2, 0, 1) -> (a, a, c). counts is i64
/// or i32 of the dim's size and is read on the host, since the result's shape depends on it;
/// without a dim x is flattened first. ValueError for a negative count, ShapeError for another
/// shape.
TESSERA_API Tensor repeat_interleave(const Tensor& x, const Tensor& counts,
                                     std::optional<int> dim = {});

}  // namespace tessera
