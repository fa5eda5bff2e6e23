// SPDX-License-Identifier: Apache-2.0
// Elementary functions and activations of the pointwise family: checks, and the gradients of fused
// gradients.
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/pointwise/pointwise_family_impl.h"

namespace tessera::op {

template <> struct Variants<Gelu> {
  static std::vector<Gelu> all() { return {{{}, false}, {{}, true}}; }
};
template <> struct Variants<Softplus> {
  static std::vector<Softplus> all() { return {{{}, 1, 20}, {{}, 2.5, 2}}; }
};

Tensor Erf::bend(const Tensor& x, const Tensor& dy, const Tensor& g) {
  const Tensor bell = exp(affine(mul(x, x), -1, 0));
  return affine(mul(mul(dy, g), mul(x, bell)), -2 * 1.1283791670955126, 0);
}

Tensor Silu::bend(const Tensor& x, const Tensor& dy, const Tensor& g) {
  // With s = sigmoid(x): s (1 - s) (2 + x (1 - 2 s)).
  const Tensor s = sigmoid(x);
  const Tensor curve = affine(mul(x, affine(s, -2, 1)), 1, 2);
  return mul(mul(dy, g), mul(mul(s, affine(s, -1, 1)), curve));
}

Tensor Gelu::bend(const Tensor& input, const Tensor& dy, const Tensor& g) const {
  // Beyond, the result is 0 in every dtype, and powers of x overflow in f16.
  const double far = tanh_approximation ? 8 : 40;
  const Tensor x = clamp(input, {-far, far}), x2 = mul(x, x);
  if (!tanh_approximation) {  // (2 - x^2) times the density
    const Tensor density = affine(exp(affine(x2, -0.5, 0)), 0.3989422804014327, 0);
    return mul(mul(dy, g), mul(density, affine(x2, -1, 2)));
  }
  // With s = sigmoid(z): s (1 - s) (2 z' + x z'' + x (1 - 2 s) z'^2).
  constexpr double kSlope = 1.5957691216057308, kCubic = 0.07135481627260025;
  const Tensor z = mul(x, affine(x2, kCubic, kSlope)), s = sigmoid(z);
  const Tensor first = affine(x2, 3 * kCubic, kSlope);
  const Tensor curve =
      add(affine(x2, 12 * kCubic, 2 * kSlope), mul(mul(x, affine(s, -2, 1)), mul(first, first)));
  return mul(mul(dy, g), mul(mul(s, sigmoid(affine(z, -1, 0))), curve));
}

MetaList Softplus::meta(Metas in) const {
  MetaList out = Pointwise::meta(in);
  if (!(beta > 0)) fail<ValueError>(name, "beta must be above 0: given ", beta, " for ", in[0]);
  return out;
}

Tensor Softplus::bend(const Tensor& x, const Tensor& dy, const Tensor& g) const {
  const Tensor z = affine(x, beta, 0), s = sigmoid(z);
  const Tensor straight = greater(z, full({}, threshold, x.dtype(), x.device()));
  return masked_fill(mul(mul(dy, g), affine(mul(s, affine(s, -1, 1)), beta, 0)), straight, 0);
}

template struct InstantiatePointwise<pointwise_elementary_ops>;

}  // namespace tessera::op
