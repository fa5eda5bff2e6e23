// SPDX-License-Identifier: Apache-2.0
// swiglu (Shazeer, 2020): silu(gate) * up in one pass, and both gradients in one pass. With a
// limit, a slope and a shift it is the gated unit of gpt-oss (OpenAI, 2025):
//   g sigmoid(alpha g) (u + shift), g = min(gate, limit), u = clamp(up, -limit, limit)
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// g sigmoid(alpha g) (u + up_shift), with g = min(gate, limit) and u = clamp(up, -limit, limit)
/// where there is a limit.
struct Swiglu {
  double limit = 0, alpha = 1, up_shift = 0;  // limit 0: none
  static constexpr std::string_view name = "swiglu";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::inputs();
  auto attributes() const { return std::tie(limit, alpha, up_shift); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<Swiglu>> samples();
};

/// gate, up, dy -> dgate, dup.
struct SwigluBackward {
  double limit = 0, alpha = 1, up_shift = 0;
  static constexpr std::string_view name = "swiglu_backward";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr int outputs = 2;
  static constexpr NotDifferentiable vjp{
      "the fused gradient of swiglu is differentiated once only; mul(silu(gate), up) more often"};
  auto attributes() const { return std::tie(limit, alpha, up_shift); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<SwigluBackward>> samples();
};

using swiglu_ops = OpList<Swiglu, SwigluBackward>;

}  // namespace op

struct SwigluOptions {
  double limit = 0;     ///< gate is held to at most this, up to within plus and minus it; 0: free
  double alpha = 1;     ///< slope inside the sigmoid
  double up_shift = 0;  ///< added to up
};
/// What gpt-oss uses.
inline constexpr SwigluOptions kGptOssSwiglu{.limit = 7, .alpha = 1.702, .up_shift = 1};
/// gate and up of one shape and dtype; ValueError where limit < 0. A gradient passes where an
/// operand is within its limit or at it.
inline Tensor swiglu(const Tensor& gate, const Tensor& up, const SwigluOptions& options = {}) {
  return call(op::Swiglu{options.limit, options.alpha, options.up_shift}, {gate, up});
}

}  // namespace tessera
