// SPDX-License-Identifier: Apache-2.0
// rms_norm (Zhang and Sennrich, 2019): y = x / sqrt(mean(x^2) + eps) * weight over the last dim.
// Statistics are f32 (f64 for f64) whatever the dtype; backward reads the saved 1/rms.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// x (..., d), weight (d) -> y (..., d), rstd (...) in f32 (f64 for f64).
struct RmsNorm {
  double eps = 1e-5;
  static constexpr std::string_view name = "rms_norm";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr int outputs = 2;
  static constexpr Saves saves = Saves::inputs() | Saves::outputs(1);
  auto attributes() const { return std::tie(eps); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<RmsNorm>> samples();
};

/// x, weight, rstd, dy -> dx (..., d), dweight (d).
struct RmsNormBackward {
  static constexpr std::string_view name = "rms_norm_backward";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr int outputs = 2;
  static constexpr NotDifferentiable vjp{
      "the fused gradient of rms_norm is differentiated once only"};
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<RmsNormBackward>> samples();
};

using rms_norm_ops = OpList<RmsNorm, RmsNormBackward>;

}  // namespace op

inline Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps = 1e-5) {
  return call(op::RmsNorm{eps}, {x, weight})[0];
}

}  // namespace tessera
