// SPDX-License-Identifier: Apache-2.0
// layer_norm (Ba, Kiros and Hinton, 2016): y = (x - mean) / sqrt(var + eps) * weight + bias over
// the last dim, var without Bessel's correction. Statistics are f32 (f64 for f64) whatever the
// dtype, the variance from differences to the mean; backward reads the saved mean and 1/sqrt(var +
// eps).
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// x (..., d), weight (d) (optional: ones), bias (d) (optional: zeros) -> y (..., d), mean (...),
/// rstd (...) in f32 (f64 for f64).
struct LayerNorm {
  double eps = 1e-5;
  static constexpr std::string_view name = "layer_norm";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr int outputs = 3;
  static constexpr Saves saves = Saves::input(0, 1) | Saves::outputs(1, 2);
  auto attributes() const { return std::tie(eps); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<LayerNorm>> samples();
};

/// x, weight (optional: ones), mean, rstd, dy -> dx (..., d), dweight (d), dbias (d).
struct LayerNormBackward {
  static constexpr std::string_view name = "layer_norm_backward";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr int outputs = 3;
  static constexpr NotDifferentiable vjp{
      "the fused gradient of layer_norm is differentiated once only"};
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<LayerNormBackward>> samples();
};

using layer_norm_ops = OpList<LayerNorm, LayerNormBackward>;

}  // namespace op

namespace detail {
/// Over as many trailing dims as the weight has.
TESSERA_API Tensor layer_norm_dims(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                   double eps);
}  // namespace detail

/// x (..., d), weight (d) and bias (d) (each may be left out) of one floating dtype -> (..., d). A
/// weight of several dims, and a bias of the same shape, normalise over as many trailing dims of x,
/// whose sizes they have (torch's normalized_shape). ShapeError, DTypeError; ValueError where eps <
/// 0.
inline Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                         double eps = 1e-5) {
  if (weight.defined() && weight.rank() > 1) return detail::layer_norm_dims(x, weight, bias, eps);
  return call(op::LayerNorm{eps}, {x, weight, bias})[0];
}

/// The same with neither weight nor bias, as in OLMo.
inline Tensor layer_norm(const Tensor& x, double eps = 1e-5) {
  return call(op::LayerNorm{eps}, {x, Tensor()})[0];
}

}  // namespace tessera
