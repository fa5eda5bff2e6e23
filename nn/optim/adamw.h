// SPDX-License-Identifier: Apache-2.0
// AdamW (Loshchilov and Hutter, 2019): `optim::AdamW optimizer(nn::parameters(net), {.lr = 1e-2})`.
// Moments are f32 or bf16; bf16 values are rounded stochastically with keys, so the bits are the
// same on any mesh.
#pragma once

#include "tessera/nn/optim/optimizer.h"

#include <map>
#include <utility>

namespace tessera {
struct AdamWOptions;
}

namespace tessera::optim {

struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  DType state_dtype = DType::f32;  ///< of both moments, or bf16; f64 for f64 parameters
  uint64_t seed = 0;               ///< of stochastic rounding
  /// Learning rate and step count are tensors of the device, and each step adds to the count there,
  /// so that a CUDA graph can hold it. Launches are not counted here: set_steps() adds them.
  bool capturable = false;
};

/// States: `exp_avg` and `exp_avg_sq`. Weight decay applies to every parameter of a group: put
/// parameters without it in a separate group.
class TESSERA_API AdamW final : public OptimizerWith<AdamWOptions> {
 public:
  /// ValueError or DTypeError for options out of range; UsageError as Optimizer.
  explicit AdamW(Parameters parameters, const AdamWOptions& options = {});
  explicit AdamW(const std::vector<Group>& groups);

 private:
  // Of an update that is capturable.
  struct OnDevice {
    double lr_value;
    Tensor lr, step, never;  // () f64, () f64, () bool
  };
  void update(const Update& u) override;
  [[nodiscard]] bool takes_grad_factor() const override { return true; }
  void capturable_update(const Update& u, tessera::AdamWOptions options);
  static GroupSpec spec(const Group& group);
  std::multimap<std::pair<size_t, int64_t>, OnDevice> on_device_;  // by group and step
};

}  // namespace tessera::optim
