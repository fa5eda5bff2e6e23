// SPDX-License-Identifier: Apache-2.0
// gather and scatter_add along a dim, each other's gradient. scatter_add adds in index order: the
// same bits every run.
#pragma once

#include "tessera/core/op.h"
#include "tessera/kernels/pointwise/index_dtype.h"

namespace tessera {
namespace op {

/// x (..., n, ...), index i64 (..., m, ...), no larger than x but along `dim` -> x's values at
/// index, of index's shape.
struct Gather {
  int dim = 0;
  static constexpr std::string_view name = "gather";
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::input(1);
  auto attributes() const { return std::tie(dim); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<Gather>> samples();
};

/// y = x, then y[..., index[..., j, ...], ...] += src[..., j, ...]. x may be left out: it is then
/// zero, of `size` along dim (else 0). Cuts of j are then sums to be added up.
struct ScatterAdd {
  int dim = 0;
  int64_t size = 0;
  static constexpr std::string_view name = "scatter_add";
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::input(1);
  auto attributes() const { return std::tie(dim, size); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<ScatterAdd>> samples();
};

using gather_ops = OpList<Gather, ScatterAdd>;

}  // namespace op

/// y[..., j, ...] = x[..., index[..., j, ...], ...] along `dim`, of index's shape. index is i64 or
/// i32, has as many dims as x, and is no larger but along `dim`. IndexError for an index outside
/// the dim (on CUDA its value is NaN or dropped: a kernel cannot throw).
TESSERA_API Tensor gather(const Tensor& x, int dim, const Tensor& index);
/// x with src[..., j, ...] added at [..., index[..., j, ...], ...] along `dim`, in the order of the
/// index. index as in gather; src is at least as large as it, and what lies beyond is not read.
TESSERA_API Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& src);
/// The same onto zeros of `size` along dim: the gradient of gather. It lies where src and index
/// lie.
inline Tensor scatter_zeros(int64_t size, int dim, const Tensor& index, const Tensor& src) {
  return call(op::ScatterAdd{dim, size}, {Tensor(), as_index(index), src});
}
namespace detail {
/// The part of x of this shape from its first element on; x itself where it is smaller.
TESSERA_API Tensor first_elements(const Tensor& x, const Shape& shape);
}  // namespace detail

}  // namespace tessera
