// SPDX-License-Identifier: Apache-2.0
// Gradient descent, with momentum (Sutskever et al., 2013) where asked for:
// `optim::SGD optimizer(nn::parameters(net), {.lr = 0.1, .momentum = 0.9})`.
#pragma once

#include "tessera/nn/optim/optimizer.h"

namespace tessera::optim {

struct SGDOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;  ///< needs momentum > 0 and no dampening
  bool maximize = false;
};

/// State: `momentum_buffer` where momentum is above 0; a parameter's first gradient fills it.
class TESSERA_API SGD final : public Optimizer {
 public:
  using Group = ParameterGroup<SGDOptions>;
  /// ValueError for options out of range; UsageError as Optimizer says.
  explicit SGD(Parameters parameters, const SGDOptions& options = {});
  explicit SGD(const std::vector<Group>& groups);
  [[nodiscard]] const SGDOptions& options(size_t group = 0) const;
  [[nodiscard]] double lr(size_t group = 0) const override { return options(group).lr; }
  void set_lr(double lr, size_t group = 0) override;
  /// Options of the steps to come; UsageError where they give a group momentum that had none, or
  /// take it away.
  void set_options(const SGDOptions& options, size_t group);

 private:
  void update(const Update& u) override;
  static std::vector<GroupSpec> specs(const std::vector<Group>& groups);
  std::vector<SGDOptions> options_;
};

}  // namespace tessera::optim
