// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/optim/sgd.h"

#include "tessera/kernels/sgd/sgd.h"

#include <limits>

namespace tessera::optim {
namespace {

constexpr std::string_view kName = "SGD";

}  // namespace

Optimizer::GroupSpec SGD::spec(const Group& group) {
  const SGDOptions& o = group.options;
  require_range(kName, "lr", o.lr, 0);
  require_range(kName, "momentum", o.momentum, 0);
  require_range(kName, "dampening", o.dampening, -std::numeric_limits<double>::infinity());
  require_range(kName, "weight_decay", o.weight_decay, 0);
  if (o.nesterov && !(o.momentum > 0 && o.dampening == 0))
    fail<ValueError>(kName, "nesterov needs momentum > 0 and no dampening: given ", o.momentum,
                     " and ", o.dampening);
  GroupSpec spec{group.parameters};
  if (o.momentum > 0) spec.states = {"momentum_buffer"};
  return spec;
}

SGD::SGD(Parameters parameters, const SGDOptions& options)
    : SGD(std::vector<Group>{{std::move(parameters), options}}) {}

SGD::SGD(const std::vector<Group>& groups) : OptimizerWith(kName, groups, spec) {}

void SGD::update(const Update& u) {
  const SGDOptions& o = options(u.group);
  sgd_(u.parameters, u.grads, o.momentum > 0 ? u.states[0] : std::vector<Tensor>(), u.step,
       {.lr = u.lr,
        .momentum = o.momentum,
        .dampening = o.dampening,
        .weight_decay = o.weight_decay,
        .nesterov = o.nesterov,
        .maximize = o.maximize,
        .skip = u.skip,
        .grad_factor = u.grad_factor});
}

}  // namespace tessera::optim
