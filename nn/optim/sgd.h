// SPDX-License-Identifier: Apache-2.0
// Gradient descent, optionally with momentum (Sutskever et al., 2013):
// `optim::SGD optimizer(nn::parameters(net), {.lr = 0.1, .momentum = 0.9})`.
#pragma once

#include "tessera/nn/optim/optimizer.h"

namespace tessera::optim {

struct SGDOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;  ///< needs momentum > 0 and no dampening
  bool maximize = false;
};

/// State: `momentum_buffer` if momentum is above 0, initially a parameter's first gradient.
class TESSERA_API SGD final : public OptimizerWith<SGDOptions> {
 public:
  /// ValueError for options out of range; UsageError as Optimizer.
  explicit SGD(Parameters parameters, const SGDOptions& options = {});
  explicit SGD(const std::vector<Group>& groups);

 private:
  void update(const Update& u) override;
  [[nodiscard]] bool takes_grad_factor() const override { return true; }
  static GroupSpec spec(const Group& group);
};

}  // namespace tessera::optim
