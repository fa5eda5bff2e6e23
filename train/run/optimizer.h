// SPDX-License-Identifier: Apache-2.0
// The optimizer that a configuration asks for: its fields, and its texts of parameter groups bound
// to the parameters of a model. What an optimizer does is in nn/optim.
#pragma once

#include "tessera/models/config/fields.h"
#include "tessera/nn/optim/adamw.h"

#include <memory>
#include <string>
#include <vector>

namespace tessera::train {

struct TESSERA_API OptimizerConfig {
  double lr = 8e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  DType state_dtype = DType::f32;
  /// `PATTERN [lr=X] [weight_decay=Y]`: parameters whose name the regular expression finds, and not
  /// those of an earlier group; what is left out is as above, as it is for those of no group.
  std::vector<std::string> param_groups = {};
  void fields(config::Fields& f);
};

struct PatternGroup {
  std::string pattern;
  std::vector<nn::NamedParameter> parameters;
  optim::AdamWOptions options;
};
/// What is wrong with the texts of optimizer.param_groups.
TESSERA_API std::vector<std::string> parameter_group_faults(const std::vector<std::string>& groups);
/// Every parameter that requires grad in exactly one group: the first whose pattern finds its name,
/// or the last one, which has no pattern and may be empty. `seed`: of stochastic rounding.
/// ConfigError: a text that is no group, a group without parameters.
[[nodiscard]] TESSERA_API std::vector<PatternGroup> parameter_groups(
    const OptimizerConfig& config, const std::vector<nn::NamedParameter>& parameters,
    uint64_t seed = 0);
/// AdamW over these groups. ConfigError also for values out of range.
[[nodiscard]] TESSERA_API std::unique_ptr<optim::Optimizer> make_optimizer(
    const OptimizerConfig& config, const std::vector<nn::NamedParameter>& parameters,
    uint64_t seed = 0);

}  // namespace tessera::train
