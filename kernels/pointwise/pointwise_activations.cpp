// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/pointwise/pointwise_activations.h"

#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/pointwise/pointwise_family_impl.h"

namespace tessera::op {

template <> struct Variants<LeakyRelu> {
  static std::vector<LeakyRelu> all() { return {{{}, 0.01}, {{}, 0.3}}; }
};
template <> struct Variants<Elu> {
  static std::vector<Elu> all() { return {{{}, 1}, {{}, 0.6}}; }
};
template <> struct Variants<HardTanh> {
  static std::vector<HardTanh> all() { return {{{}, -1, 1}, {{}, 0, 6}}; }
};

Tensor Elu::bend(const Tensor& x, const Tensor& dy, const Tensor& g) const {
  const Tensor straight = greater(x, full({}, 0, x.dtype(), x.device()));
  return masked_fill(mul(mul(dy, g), affine(exp(x), alpha, 0)), straight, 0);
}

Tensor Mish::bend(const Tensor& x, const Tensor& dy, const Tensor& g) {
  // With s = sigmoid(x), w = tanh(softplus(x)) and w' = s (1 - w^2): w' (2 + x (1 - s - 2 w s)).
  const Tensor s = sigmoid(x), w = tanh(softplus(x));
  const Tensor slope = mul(s, affine(mul(w, w), -1, 1));
  const Tensor inner = sub(affine(s, -1, 1), affine(mul(w, s), 2, 0));
  return mul(mul(dy, g), mul(slope, affine(mul(x, inner), 1, 2)));
}

Tensor LogSigmoid::bend(const Tensor& x, const Tensor& dy, const Tensor& g) {
  const Tensor s = sigmoid(x);
  return mul(mul(dy, g), mul(s, affine(s, 1, -1)));
}

template struct InstantiatePointwise<pointwise_activations_ops>;

}  // namespace tessera::op
