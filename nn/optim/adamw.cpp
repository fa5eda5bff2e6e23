// SPDX-License-Identifier: Apache-2.0
// Checks of options, and one fused op for all parameters of a group that have done as many steps.
#include "tessera/nn/optim/adamw.h"

#include "tessera/kernels/adamw/adamw.h"

#include <algorithm>
#include <limits>

namespace tessera::optim {
namespace {

constexpr std::string_view kName = "AdamW";

bool is_bf16(const Tensor& t) { return t.dtype() == DType::bf16; }

}  // namespace

std::vector<Optimizer::GroupSpec> AdamW::specs(const std::vector<Group>& groups) {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  std::vector<GroupSpec> specs;
  for (const auto& [parameters, o] : groups) {
    require_range(kName, "lr", o.lr, 0, kAny);
    require_range(kName, "beta1", o.beta1, 0, 1);
    require_range(kName, "beta2", o.beta2, 0, 1);
    require_range(kName, "eps", o.eps, 0, kAny);
    require_range(kName, "weight_decay", o.weight_decay, 0, kAny);
    if (o.state_dtype != DType::f32 && o.state_dtype != DType::bf16)
      fail<DTypeError>(kName,
                       "state_dtype must be f32 or bf16 (moments of f64 parameters are f64 "
                       "in any case): given ",
                       o.state_dtype);
    specs.push_back({parameters, {"exp_avg", "exp_avg_sq"}, o.state_dtype});
  }
  return specs;
}

AdamW::AdamW(Parameters parameters, const AdamWOptions& options)
    : AdamW(std::vector<Group>{{std::move(parameters), options}}) {}

AdamW::AdamW(const std::vector<Group>& groups) : Optimizer(kName, specs(groups)) {
  for (const Group& group : groups) options_.push_back(group.options);
}

const AdamWOptions& AdamW::options(size_t group) const {
  require_group(group);
  return options_[group];
}

void AdamW::set_lr(double lr, size_t group) {
  AdamWOptions changed = options(group);
  changed.lr = lr;
  set_options(changed, group);
}

void AdamW::set_options(const AdamWOptions& options, size_t group) {
  require_group(group);
  AdamWOptions& now = options_[group];
  (void)specs({{Parameters{}, options}});
  if (options.state_dtype != now.state_dtype)
    fail<UsageError>(kName, "the moments of group ", group, " are ", now.state_dtype,
                     ": they cannot become ", options.state_dtype);
  now = options;
}

void AdamW::update(const Update& u) {
  const AdamWOptions& o = options(u.group);
  const bool narrow =
      std::ranges::any_of(u.parameters, is_bf16) || std::ranges::any_of(u.states[0], is_bf16);
  adamw_(u.parameters, u.grads, u.states[0], u.states[1], u.step,
         {.lr = u.lr,
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .eps = o.eps,
          .weight_decay = o.weight_decay,
          .seed = o.seed,
          .streams = narrow ? u.streams : std::vector<uint64_t>()});
}

}  // namespace tessera::optim
