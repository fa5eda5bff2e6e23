// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/norm.h"

#include "tessera/kernels/layer_norm/layer_norm.h"
#include "tessera/kernels/rms_norm/rms_norm.h"

namespace tessera::nn {

Norm::Norm(const Config& c) : weight(parameter({c.dim}, c.dtype)), config_(c) {
  if (c.kind == Kind::layer && c.bias) bias = parameter({c.dim}, c.dtype);
}

void Norm::visit(Visitor& visitor) {
  visitor.parameter("weight", weight, Init::constant(1 - config_.weight_offset));
  if (bias.defined()) visitor.parameter("bias", bias, Init::constant(0));
}

std::string Norm::extra_repr() const {
  const bool rms = config_.kind == Kind::rms;
  return concat(config_.dim, ", eps=", config_.eps, rms ? ", rms" : ", layer",
                config_.weight_offset == 0 ? "" : concat(", weight_offset=", config_.weight_offset),
                rms || config_.bias ? "" : ", bias=False");
}

Tensor Norm::forward(const Tensor& x) const {
  if (config_.kind == Kind::rms) return rms_norm(x, weight, config_.eps, config_.weight_offset);
  if (x.rank() < 1 || x.size(-1) != config_.dim)
    fail<ShapeError>("layer_norm", "x must be (..., ", config_.dim, "): given ", x.meta());
  return layer_norm(x, weight, bias, config_.eps);
}

}  // namespace tessera::nn
