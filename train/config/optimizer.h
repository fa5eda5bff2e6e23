// SPDX-License-Identifier: Apache-2.0
// The optimizer of a configuration: its fields, and parameter groups matched to the parameters of a
// model. Optimizers themselves are in nn/optim.
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
  /// `PATTERN [lr=X] [weight_decay=Y]`: parameters whose name matches the regular expression,
  /// except those of an earlier group. Omitted values, and parameters of no group, use the values
  /// above.
  std::vector<std::string> param_groups = {};
  void fields(config::Fields& f);
};

struct PatternGroup {
  std::string pattern;
  std::vector<nn::NamedParameter> parameters;
  optim::AdamWOptions options;
};
/// Error messages for the entries of optimizer.param_groups.
TESSERA_API std::vector<std::string> parameter_group_faults(const std::vector<std::string>& groups);
/// Puts every parameter that requires grad in exactly one group: the first whose pattern matches
/// its name, or the last one, which has no pattern and may be empty. `seed`: of stochastic
/// rounding. `whole`: of the whole model, if `parameters` are a pipeline rank's. ConfigError: an
/// invalid entry, a group without parameters in the whole model.
[[nodiscard]] TESSERA_API std::vector<PatternGroup> parameter_groups(
    const OptimizerConfig& config, const std::vector<nn::NamedParameter>& parameters,
    uint64_t seed = 0, const std::vector<nn::NamedParameter>& whole = {});
/// AdamW over these groups. ConfigError also for values out of range.
[[nodiscard]] TESSERA_API std::unique_ptr<optim::Optimizer> make_optimizer(
    const OptimizerConfig& config, const std::vector<nn::NamedParameter>& parameters,
    uint64_t seed = 0, const std::vector<nn::NamedParameter>& whole = {});

}  // namespace tessera::train
