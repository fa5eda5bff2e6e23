// SPDX-License-Identifier: Apache-2.0
// AdamW with decay on every parameter, in groups that may have a learning rate and a decay of their
// own. Moments are f32 or bf16; what is stored in bf16 is rounded stochastically, by keys, so the
// bits are the same on any mesh.
#pragma once

#include "tessera/core/tensor.h"
#include "tessera/models/config/fields.h"
#include "tessera/nn/parameters.h"

#include <optional>
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

struct ParameterGroup {
  std::string pattern;
  double lr = 0, weight_decay = 0;
  std::vector<size_t> members = {};  ///< indices of parameters
};
/// What is wrong with the texts of optimizer.param_groups.
TESSERA_API std::vector<std::string> parameter_group_faults(const std::vector<std::string>& groups);
/// Every parameter in exactly one group: the first whose pattern finds its name, or the last one,
/// which has no pattern and may be empty. ConfigError: a text that is no group, a group without
/// parameters.
TESSERA_API std::vector<ParameterGroup> parameter_groups(const OptimizerConfig& config,
                                                         const std::vector<std::string>& names);

class TESSERA_API AdamW {
 public:
  /// Steps those of the parameters that require grad. `seed`: of stochastic rounding. ConfigError:
  /// values out of range, groups that do not fit the names.
  AdamW(std::vector<nn::NamedParameter> parameters, const OptimizerConfig& config,
        uint64_t seed = 0);
  /// Parameters named by their numbers.
  AdamW(const std::vector<Tensor>& parameters, const OptimizerConfig& config);
  [[nodiscard]] const std::vector<Tensor>& parameters() const { return parameters_; }
  [[nodiscard]] const std::vector<ParameterGroup>& groups() const { return groups_; }
  /// The gradients, in the order of the parameters; AutogradError if one has none.
  [[nodiscard]] std::vector<Tensor> grads() const;
  /// Steps every parameter with its gradient; `scale` multiplies the groups' learning rates.
  void step(double scale = 1);
  void zero_grad();

  /// Steps done so far, and the moments as `<parameter>.exp_avg` and `<parameter>.exp_avg_sq`: what
  /// a checkpoint holds. The tensors are those that step() works on.
  [[nodiscard]] int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  [[nodiscard]] std::vector<nn::NamedParameter> state() const;
  /// Of this rank's states.
  [[nodiscard]] int64_t state_bytes() const;

 private:
  std::vector<std::string> names_;
  std::vector<Tensor> parameters_, first_, second_;
  std::vector<uint64_t> streams_;  // none where nothing is bf16
  std::vector<ParameterGroup> groups_;
  OptimizerConfig config_;
  uint64_t seed_;
  int64_t steps_ = 0;
};

}  // namespace tessera::train
