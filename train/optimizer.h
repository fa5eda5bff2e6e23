// SPDX-License-Identifier: Apache-2.0
// AdamW over all parameters, with decay on each of them, and the schedule of its learning rate:
// linear warm-up, a stable part and a decay, as torchtitan computes them.
#pragma once

#include "tessera/core/tensor.h"
#include "tessera/train/fields.h"

#include <string>
#include <vector>

namespace tessera::train {

struct OptimizerConfig {
  double lr = 8e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  void fields(Fields& f);
};

class TESSERA_API AdamW {
 public:
  AdamW(std::vector<Tensor> parameters, const OptimizerConfig& config);
  [[nodiscard]] const std::vector<Tensor>& parameters() const { return parameters_; }
  /// The gradients, in the order of the parameters; AutogradError if one has none.
  [[nodiscard]] std::vector<Tensor> grads() const;
  /// Steps every parameter with its gradient; `scale` multiplies the configured learning rate.
  void step(double scale = 1);
  void zero_grad();
  [[nodiscard]] int64_t steps() const { return steps_; }
  /// Of this rank's states.
  [[nodiscard]] int64_t state_bytes() const;

 private:
  std::vector<Tensor> parameters_, first_, second_;
  OptimizerConfig config_;
  int64_t steps_ = 0;
};

struct ScheduleConfig {
  int64_t warmup_steps = 200;
  std::optional<double> decay_ratio;
  std::string decay_type = "linear";
  double min_lr_factor = 0;
  void fields(Fields& f);
};

/// Factor of the learning rate in step `step` (from 0) of `steps`.
TESSERA_API double lr_factor(const ScheduleConfig& config, int64_t step, int64_t steps);

}  // namespace tessera::train
