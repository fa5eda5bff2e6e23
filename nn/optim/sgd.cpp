// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/optim/sgd.h"

#include "tessera/kernels/sgd/sgd.h"

#include <limits>

namespace tessera::optim {
namespace {

constexpr std::string_view kName = "SGD";

}  // namespace

std::vector<Optimizer::GroupSpec> SGD::specs(const std::vector<Group>& groups) {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  std::vector<GroupSpec> specs;
  for (const auto& [parameters, o] : groups) {
    require_range(kName, "lr", o.lr, 0, kAny);
    require_range(kName, "momentum", o.momentum, 0, kAny);
    require_range(kName, "dampening", o.dampening, -kAny, kAny);
    require_range(kName, "weight_decay", o.weight_decay, 0, kAny);
    if (o.nesterov && !(o.momentum > 0 && o.dampening == 0))
      fail<ValueError>(kName, "nesterov needs momentum > 0 and no dampening: given ", o.momentum,
                       " and ", o.dampening);
    specs.push_back({parameters});
    if (o.momentum > 0) specs.back().states = {"momentum_buffer"};
  }
  return specs;
}

SGD::SGD(Parameters parameters, const SGDOptions& options)
    : SGD(std::vector<Group>{{std::move(parameters), options}}) {}

SGD::SGD(const std::vector<Group>& groups) : Optimizer(kName, specs(groups)) {
  for (const Group& group : groups) options_.push_back(group.options);
}

const SGDOptions& SGD::options(size_t group) const {
  require_group(group);
  return options_[group];
}

void SGD::set_lr(double lr, size_t group) {
  SGDOptions changed = options(group);
  changed.lr = lr;
  set_options(changed, group);
}

void SGD::set_options(const SGDOptions& options, size_t group) {
  require_group(group);
  SGDOptions& now = options_[group];
  (void)specs({{Parameters{}, options}});
  if ((options.momentum > 0) != (now.momentum > 0))
    fail<UsageError>(kName, "group ", group, " has momentum ", now.momentum, ": it cannot become ",
                     options.momentum, ", as buffers are kept from the first step on or never");
  now = options;
}

void SGD::update(const Update& u) {
  const SGDOptions& o = options(u.group);
  sgd_(u.parameters, u.grads, o.momentum > 0 ? u.states[0] : std::vector<Tensor>(), u.step,
       {.lr = u.lr,
        .momentum = o.momentum,
        .dampening = o.dampening,
        .weight_decay = o.weight_decay,
        .nesterov = o.nesterov,
        .maximize = o.maximize});
}

}  // namespace tessera::optim
