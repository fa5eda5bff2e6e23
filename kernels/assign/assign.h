// SPDX-License-Identifier: Apache-2.0
// assign_: writes a tensor's values into another of the same shape, converted to its dtype. What
// refreshes a buffer or a copy in lower precision without giving it new bytes. And `x += y` and its
// kin, which write what they compute over x.
#pragma once

#include "tessera/core/op.h"
#include "tessera/core/scalar.h"

namespace tessera {
namespace op {

/// to (...), from (...): to = from.
struct Assign {
  static constexpr std::string_view name = "assign_";
  static constexpr DTypeSet dtypes = kAllDTypes;
  static constexpr NotDifferentiable vjp{"it works in place, on buffers and copies of parameters"};
  static constexpr bool writes(size_t i, size_t) { return i == 0; }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs written) const;
  void cuda(Tensors in, Outputs written, Stream stream) const;
  static std::vector<Sample<Assign>> samples();
};

using assign_ops = OpList<Assign>;

}  // namespace op

/// to = from, converted as cast does. ShapeError unless the shapes are equal.
inline void assign_(const Tensor& to, const Tensor& from) { call(op::Assign{}, {to, from}); }

/// Throws an InPlaceError where autograd would have to record that `op` writes values of `from`
/// into `to`: in-place ops are not recorded.
TESSERA_API void check_unrecorded(std::string_view op, const Tensor& to, const Tensor& from);

/// x and its views have the result: `x[slice(0, 2)] += 1` changes x. The operand broadcasts to x's
/// shape (ShapeError) and has its dtype, a number is rounded to it. Not recorded: InPlaceError
/// where x or the operand requires grad, but under NoGrad.
TESSERA_API const Tensor& operator+=(const Tensor& x, const Tensor& y);
TESSERA_API const Tensor& operator-=(const Tensor& x, const Tensor& y);
TESSERA_API const Tensor& operator*=(const Tensor& x, const Tensor& y);
TESSERA_API const Tensor& operator/=(const Tensor& x, const Tensor& y);
TESSERA_API const Tensor& operator+=(const Tensor& x, Scalar y);
TESSERA_API const Tensor& operator-=(const Tensor& x, Scalar y);
TESSERA_API const Tensor& operator*=(const Tensor& x, Scalar y);
TESSERA_API const Tensor& operator/=(const Tensor& x, Scalar y);

}  // namespace tessera
