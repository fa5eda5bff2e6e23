// SPDX-License-Identifier: Apache-2.0
// swiglu (Shazeer, 2020): silu(gate) * up in one pass, and both gradients in one pass.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

struct Swiglu {
  static constexpr std::string_view name = "swiglu";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::inputs();
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<Swiglu>> samples();
};

/// gate, up, dy -> dgate, dup.
struct SwigluBackward {
  static constexpr std::string_view name = "swiglu_backward";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr int outputs = 2;
  static constexpr NotDifferentiable vjp{
      "the fused gradient of swiglu is differentiated once only; mul(silu(gate), up) more often"};
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<SwigluBackward>> samples();
};

using swiglu_ops = OpList<Swiglu, SwigluBackward>;

}  // namespace op

/// gate and up of one shape and dtype.
inline Tensor swiglu(const Tensor& gate, const Tensor& up) {
  return call(op::Swiglu{}, {gate, up});
}

}  // namespace tessera
