// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/pointwise/pointwise_rounding.h"

#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/pointwise/pointwise_family_impl.h"

namespace tessera::op {

template <> struct Variants<LerpScalar> {
  static std::vector<LerpScalar> all() { return {{{}, 0.3}, {{}, 0.9}}; }
};
template <> struct Variants<NanToNum> {
  static std::vector<NanToNum> all() { return {{{}, 0, 3, -2}, {{}, 0.5, 1.5, -1}}; }
};

void Fmod::cpu(Tensors in, Outputs y) const {
  if (y[0].numel() > 0) check_divisors(name, in[1]);
  Pointwise::cpu(in, y);
}

// dy times minus the exact quotient without its fraction.
Tensor Fmod::grad_b(const Saved& s, const Tensor& dy) {
  const Tensor &a = s.input(0), &b = s.input(1);
  const Tensor size = floor_divide(abs(a), abs(b));
  return affine(mul(dy, mul(size, mul(sign(a), sign(b)))), -1, -0.0);
}

void FloorDivide::cpu(Tensors in, Outputs y) const {
  if (y[0].numel() > 0) check_divisors(name, in[1]);
  Pointwise::cpu(in, y);
}

Grads Lerp::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  const Tensor &a = s.input(0), &b = s.input(1), &weight = s.input(2);
  Grads g(3);
  if (needs[0]) g[0] = sum_to(mul(dy[0], affine(weight, -1, 1)), a.shape());
  if (needs[1]) g[1] = sum_to(mul(dy[0], weight), b.shape());
  if (needs[2]) g[2] = sum_to(mul(dy[0], sub(b, a)), weight.shape());
  return g;
}

Grads LerpScalar::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  Grads g(2);
  if (needs[0]) g[0] = sum_to(affine(dy[0], 1 - weight, 0), s.input_meta(0).shape);
  if (needs[1]) g[1] = sum_to(affine(dy[0], weight, 0), s.input_meta(1).shape);
  return g;
}

Grads ClampTensor::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  const Tensor &x = s.input(0), &low = s.input(1), &high = s.input(2);
  const Tensor half = affine(dy[0], 0.5, 0), open = less(low, high);
  const Tensor at_low = logical_and(equal(x, low), open),
               at_high = logical_and(equal(x, high), open);
  const auto shares = [&](const Tensor& whole, const Tensor& tie, size_t input) {
    return sum_to(where(tie, half, masked_fill(dy[0], logical_not(whole), 0)),
                  s.input_meta(input).shape);
  };
  Grads g(3);
  if (needs[0]) {
    const Tensor inside = logical_and(greater_equal(x, low), less_equal(x, high));
    g[0] = shares(inside, logical_or(at_low, at_high), 0);
  }
  if (needs[1]) g[1] = shares(logical_and(less(x, low), open), at_low, 1);
  if (needs[2]) g[2] = shares(logical_or(greater(x, high), less(high, low)), at_high, 2);
  return g;
}

template struct InstantiatePointwise<pointwise_rounding_ops>;

}  // namespace tessera::op

namespace tessera {

Tensor clamp(const Tensor& x, const Tensor& min, const Tensor& max) {
  if (!min.defined() && !max.defined())
    fail<UsageError>("clamp", "expected min, max or both: given neither, for ", x.meta());
  if (!is_floating(x.dtype())) {  // without a gradient, and without a bound that does nothing
    const Tensor y = min.defined() ? maximum(x, min) : x;
    return max.defined() ? minimum(y, max) : y;
  }
  const auto bound = [&](const Tensor& given, double none) {
    return given.defined() ? given : full({}, none, x.dtype(), x.device());
  };
  constexpr double kNone = std::numeric_limits<double>::infinity();
  return call(op::ClampTensor{}, {x, bound(min, -kNone), bound(max, kNone)});
}

Tensor nan_to_num(const Tensor& x, const NanToNumOptions& options) {
  const double top = op::largest_number(x.dtype());
  return call(
      op::NanToNum{{}, options.nan, options.posinf.value_or(top), options.neginf.value_or(-top)},
      {x});
}

}  // namespace tessera
