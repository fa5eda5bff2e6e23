// SPDX-License-Identifier: Apache-2.0
// AdamW (Loshchilov and Hutter, 2019): `optim::AdamW optimizer(nn::parameters(net), {.lr = 1e-2})`.
// Moments are f32 or bf16; bf16 values are rounded stochastically with keys, so the bits are the
// same on any mesh.
#pragma once

#include "tessera/nn/optim/optimizer.h"

namespace tessera::optim {

struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  DType state_dtype = DType::f32;  ///< of both moments, or bf16; f64 for f64 parameters
  uint64_t seed = 0;               ///< of stochastic rounding
};

/// States: `exp_avg` and `exp_avg_sq`. Weight decay applies to every parameter of a group: put
/// parameters without it in a separate group.
class TESSERA_API AdamW final : public OptimizerWith<AdamWOptions> {
 public:
  /// ValueError or DTypeError for options out of range; UsageError as Optimizer.
  explicit AdamW(Parameters parameters, const AdamWOptions& options = {});
  explicit AdamW(const std::vector<Group>& groups);

 private:
  void update(const Update& u) override;
  static GroupSpec spec(const Group& group);
};

}  // namespace tessera::optim
