// SPDX-License-Identifier: Apache-2.0
// AdamW (Loshchilov and Hutter, 2019): `optim::AdamW optimizer(nn::parameters(net), {.lr = 1e-2})`.
// Moments are f32 or bf16; what is stored in bf16 is rounded stochastically, by keys, so the bits
// are the same on any mesh.
#pragma once

#include "tessera/nn/optim/optimizer.h"

namespace tessera::optim {

struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  DType state_dtype = DType::f32;  ///< of both moments, or bf16; f64 for f64 parameters
  uint64_t seed = 0;               ///< of stochastic rounding
};

/// States: `exp_avg` and `exp_avg_sq`. Decay falls on every parameter of a group: those that shall
/// have none are a group of their own.
class TESSERA_API AdamW final : public Optimizer {
 public:
  using Group = ParameterGroup<AdamWOptions>;
  /// ValueError or DTypeError for options out of range; UsageError as Optimizer says.
  explicit AdamW(Parameters parameters, const AdamWOptions& options = {});
  explicit AdamW(const std::vector<Group>& groups);
  [[nodiscard]] const AdamWOptions& options(size_t group = 0) const;
  [[nodiscard]] double lr(size_t group = 0) const override { return options(group).lr; }
  void set_lr(double lr, size_t group = 0) override;
  /// Options of the steps to come; UsageError for another dtype of the moments.
  void set_options(const AdamWOptions& options, size_t group);

 private:
  void update(const Update& u) override;
  static std::vector<GroupSpec> specs(const std::vector<Group>& groups);
  std::vector<AdamWOptions> options_;
};

}  // namespace tessera::optim
