// SPDX-License-Identifier: Apache-2.0
// gather and scatter_add along a dim, each other's gradient. scatter_add adds in index order: the
// same bits every run.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// x (..., n, ...), index i64 (..., m, ...) equal to x but for `dim` -> x's values at index, of
/// index's shape.
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

/// IndexError for an index outside the dim (on CUDA its value is NaN or dropped: a kernel cannot
/// throw).
inline Tensor gather(const Tensor& x, int dim, const Tensor& index) {
  return call(op::Gather{dim}, {x, index});
}
inline Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& src) {
  return call(op::ScatterAdd{dim, 0}, {x, index, src});
}
/// The same onto zeros of `size` along dim: the gradient of gather. It lies where src and index
/// lie.
inline Tensor scatter_zeros(int64_t size, int dim, const Tensor& index, const Tensor& src) {
  return call(op::ScatterAdd{dim, size}, {Tensor(), index, src});
}

}  // namespace tessera
