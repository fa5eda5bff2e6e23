// SPDX-License-Identifier: Apache-2.0
// rms_norm (Zhang and Sennrich, 2019): y = x / sqrt(mean(x^2) + eps) * (weight_offset + weight)
// over the last dim. Statistics and that sum are f32 (f64 for f64) whatever the dtype, so that an
// offset takes no bits from a narrow weight; backward reads the saved 1/rms. With a residual, x +
// residual is made in the same pass and is a second result.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// x (..., d), weight (d) (optional: ones, and no offset) -> y (..., d), rstd (...) in f32 (f64 for
/// f64).
struct RmsNorm {
  double eps = 1e-5, weight_offset = 0;
  static constexpr std::string_view name = "rms_norm";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr int outputs = 2;
  static constexpr Saves saves = Saves::inputs() | Saves::outputs(1);
  auto attributes() const { return std::tie(eps, weight_offset); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<RmsNorm>> samples();
};

/// x (..., d), residual (..., d), weight (d) -> y (..., d), sum (..., d) = x + residual, rstd (...)
/// in f32 (f64 for f64): y is rms_norm of the sum as rounded.
struct AddRmsNorm {
  double eps = 1e-5, weight_offset = 0;
  static constexpr std::string_view name = "add_rms_norm";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr int outputs = 3;
  static constexpr Saves saves = Saves::input(2) | Saves::outputs(1, 2);
  auto attributes() const { return std::tie(eps, weight_offset); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<AddRmsNorm>> samples();
};

/// x, weight (optional: ones, and no offset), rstd, dy, dx_more (optional, like x) -> dx (..., d)
/// with dx_more added, dweight (d).
struct RmsNormBackward {
  double weight_offset = 0;
  static constexpr std::string_view name = "rms_norm_backward";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr int outputs = 2;
  static constexpr NotDifferentiable vjp{
      "the fused gradient of rms_norm is differentiated once only"};
  auto attributes() const { return std::tie(weight_offset); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<RmsNormBackward>> samples();
};

using rms_norm_ops = OpList<RmsNorm, AddRmsNorm, RmsNormBackward>;

}  // namespace op

/// x (..., d) and weight (d) of one floating dtype -> (..., d). `weight_offset` is added to the
/// weight: 1 in the models of Gemma, whose weights are distances from one. ShapeError, DTypeError;
/// ValueError where eps < 0, the offset is not finite, or there is an offset but no weight.
inline Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps = 1e-5,
                       double weight_offset = 0) {
  return call(op::RmsNorm{eps, weight_offset}, {x, weight})[0];
}

/// The same with a weight of ones, as Llama 4 norms queries and keys.
inline Tensor rms_norm(const Tensor& x, double eps = 1e-5) {
  return call(op::RmsNorm{eps}, {x, Tensor()})[0];
}

struct AddRmsNormResult {
  Tensor y;    ///< rms_norm(sum)
  Tensor sum;  ///< x + residual: the residual of the next block
};
/// rms_norm(x + residual) and the sum, in one pass over the bytes; operands as in rms_norm,
/// residual like x.
inline AddRmsNormResult add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                     double eps = 1e-5, double weight_offset = 0) {
  auto [y, sum, rstd] = call(op::AddRmsNorm{eps, weight_offset}, {x, residual, weight});
  return {y, sum};
}

}  // namespace tessera
