// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/pointwise/pointwise_losses.h"

#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/pointwise/pointwise_family_impl.h"

namespace tessera::op {

template <> struct Variants<HuberLoss> {
  static std::vector<HuberLoss> all() { return {{{}, 0.875, false}, {{}, 0.72, true}}; }
};
template <> struct Variants<KlDiv> {
  static std::vector<KlDiv> all() { return {{{}, false}, {{}, true}}; }
};
template <class Of> struct Variants<LossBackward<Of>> {
  static std::vector<LossBackward<Of>> all() {
    std::vector<LossBackward<Of>> backward;
    for (const Of& of : Variants<Of>::all()) backward.push_back({{}, of});
    return backward;
  }
};

MetaList HuberLoss::meta(Metas in) const {
  MetaList out = Pointwise::meta(in);
  if (!(delta > 0)) fail<ValueError>(name, "delta must be above 0: given ", delta, " for ", in[0]);
  return out;
}

Tensor HuberLoss::bend(const Tensor& x, const Tensor& target, const Tensor& weight) const {
  const Tensor bound = full({}, delta, x.dtype(), x.device());
  const Tensor straight = greater(abs(sub(x, target)), bound);
  return masked_fill(unit ? affine(weight, 1 / delta, 0) : weight, straight, 0);
}

Tensor BceWithLogits::bend(const Tensor& x, const Tensor&, const Tensor& weight) {
  const Tensor s = sigmoid(x);
  return mul(weight, mul(s, affine(s, -1, 1)));
}

Tensor KlDiv::by_target(const Saved& s, const Tensor& dy) const {
  const Tensor &x = s.input(0), &target = s.input(1);
  if (log_target) return mul(dy, mul(exp(target), affine(sub(target, x), 1, 1)));
  const Tensor nothing = equal(target, full({}, 0, target.dtype(), target.device()));
  return mul(dy, masked_fill(affine(sub(log(target), x), 1, 1), nothing, 0));
}

Tensor KlDiv::bend_target(const Tensor&, const Tensor& target, const Tensor& weight) const {
  return neg(log_target ? mul(exp(target), weight) : weight);
}

template struct InstantiatePointwise<pointwise_losses_ops>;

}  // namespace tessera::op
