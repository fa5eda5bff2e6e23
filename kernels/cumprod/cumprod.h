// SPDX-License-Identifier: Apache-2.0
// cumprod: products of all elements up to each, along a dim. Floats are multiplied in f64 and
// rounded once, integers wrap around. The gradient needs no division, so zeros are no special case.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// x (..., n, ...) -> the same shape and dtype. The dim cannot be sharded.
struct Cumprod {
  int dim = 0;
  static constexpr std::string_view name = "cumprod";
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::input(0);
  auto attributes() const { return std::tie(dim); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<Cumprod>> samples();
};

/// x, dy -> dx[i] = x[0] ... x[i - 1] s[i], where s[i] = dy[i] + x[i + 1] s[i + 1].
struct CumprodBackward {
  int dim = 0;
  static constexpr std::string_view name = "cumprod_backward";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr NotDifferentiable vjp{
      "the fused gradient of cumprod is differentiated once only; exp(cumsum(log(x))) more often"};
  auto attributes() const { return std::tie(dim); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs dx) const;
  void cuda(Tensors in, Outputs dx, Stream stream) const;
  static std::vector<Sample<CumprodBackward>> samples();
};

using cumprod_ops = OpList<Cumprod, CumprodBackward>;

}  // namespace op

/// y[i] = x[0] * ... * x[i] along `dim`. The dtype is x's (cast narrow integers first). IndexError
/// for a dim that x lacks, DTypeError for bool.
inline Tensor cumprod(const Tensor& x, int dim) { return call(op::Cumprod{dim}, {x}); }

}  // namespace tessera
