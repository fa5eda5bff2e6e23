// SPDX-License-Identifier: Apache-2.0
// Checks of options, and one fused op for all parameters of a group with the same number of steps.
#include "tessera/nn/optim/adamw.h"

#include "tessera/kernels/adamw/adamw.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <algorithm>

namespace tessera::optim {
namespace {

constexpr std::string_view kName = "AdamW";

bool is_bf16(const Tensor& t) { return t.dtype() == DType::bf16; }

}  // namespace

Optimizer::GroupSpec AdamW::spec(const Group& group) {
  const AdamWOptions& o = group.options;
  require_range(kName, "lr", o.lr, 0);
  require_range(kName, "beta1", o.beta1, 0, 1);
  require_range(kName, "beta2", o.beta2, 0, 1);
  require_range(kName, "eps", o.eps, 0);
  require_range(kName, "weight_decay", o.weight_decay, 0);
  if (o.state_dtype != DType::f32 && o.state_dtype != DType::bf16)
    fail<DTypeError>(kName,
                     "state_dtype must be f32 or bf16 (moments of f64 parameters are f64 in any "
                     "case): given ",
                     o.state_dtype);
  return {group.parameters, {"exp_avg", "exp_avg_sq"}, o.state_dtype};
}

AdamW::AdamW(Parameters parameters, const AdamWOptions& options)
    : AdamW(std::vector<Group>{{std::move(parameters), options}}) {}

AdamW::AdamW(const std::vector<Group>& groups) : OptimizerWith(kName, groups, spec) {}

void AdamW::update(const Update& u) {
  const AdamWOptions& o = options(u.group);
  const bool narrow =
      std::ranges::any_of(u.parameters, is_bf16) || std::ranges::any_of(u.states[0], is_bf16);
  const tessera::AdamWOptions options{.lr = u.lr,
                                      .beta1 = o.beta1,
                                      .beta2 = o.beta2,
                                      .eps = o.eps,
                                      .weight_decay = o.weight_decay,
                                      .seed = o.seed,
                                      .streams = narrow ? u.streams : std::vector<uint64_t>(),
                                      .skip = u.skip,
                                      .grad_factor = u.grad_factor};
  if (o.capturable) capturable_update(u, options);
  else adamw_(u.parameters, u.grads, u.states[0], u.states[1], u.step, options);
}

// What the device holds moves on with the step that it is for. A learning rate that has changed is
// copied, which a capture refuses.
void AdamW::capturable_update(const Update& u, tessera::AdamWOptions options) {
  const Device device = u.parameters[0].device();
  auto node = on_device_.extract({u.group, u.step});
  if (!node) {
    const auto there = [&](double value) { return to_device(tensor(value, DType::f64), device); };
    const auto made = on_device_.emplace(
        std::pair(u.group, u.step), OnDevice{u.lr, there(u.lr), there(static_cast<double>(u.step)),
                                             full({}, 0, DType::bool_, device)});
    node = on_device_.extract(made);
  }
  OnDevice& values = node.mapped();
  if (values.lr_value != u.lr) {
    copy_bytes(values.lr, tensor(u.lr, DType::f64));
    values.lr_value = u.lr;
  }
  if (!options.skip.defined()) options.skip = values.never;
  adamw_(u.parameters, u.grads, u.states[0], u.states[1], values.lr, values.step, options);
  copy_bytes(values.step, affine(values.step, 1, 1));
  node.key().second = u.step + 1;
  on_device_.insert(std::move(node));
}

}  // namespace tessera::optim
