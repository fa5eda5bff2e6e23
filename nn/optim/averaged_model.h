// SPDX-License-Identifier: Apache-2.0
// Averages of a model's weights over training, as torch.optim.swa_utils.AveragedModel: an
// exponential moving average (Polyak and Juditsky, 1992) or the mean of all updates (stochastic
// weight averaging, Izmailov et al., 2018). A second module holds them, which evaluates and saves
// like any other.
#pragma once

#include "tessera/nn/parameters.h"

#include <optional>
#include <vector>

namespace tessera::optim {

struct AveragedModelOptions {
  /// Decay of an exponential moving average: average = decay * average + (1 - decay) * weight, in
  /// [0, 1]. None: the mean of the weights at all updates.
  std::optional<double> decay = {};
  /// Averages floating buffers too; otherwise buffers are copied. Integer buffers always are.
  bool use_buffers = false;
};

/// `AveragedModel average(shadow, {.decay = 0.999})`, then `average.update_parameters(net)` after
/// each optimizer step. Computes in f32 for narrower dtypes; `shadow` may have another dtype than
/// the model, such as f32 beside bf16, and another layout.
class TESSERA_API AveragedModel {
 public:
  /// `module` is built like the model and holds the averages; it must outlive this object. It needs
  /// no values before the first update. ValueError: decay is outside [0, 1].
  explicit AveragedModel(nn::Module& module, const AveragedModelOptions& options = {});

  /// Updates the averages with the values of `model`; the first call copies them. Not recorded.
  /// DataError names all differences between the two modules.
  void update_parameters(nn::Module& model);
  [[nodiscard]] nn::Module& module() { return module_; }
  /// Updates so far.
  [[nodiscard]] int64_t n_averaged() const { return n_averaged_; }

  /// The state for checkpoints, with PyTorch's names: `module.<path>` of each parameter and buffer,
  /// and `n_averaged`, () i64. The tensors are those that are updated: copy them to keep their
  /// values.
  [[nodiscard]] std::vector<nn::NamedParameter> state();
  /// Loads the values of `from`, which are global tensors even if those here are distributed.
  /// DataError names everything that is missing, unknown or of another shape.
  void load_state(const std::vector<nn::NamedParameter>& from);

 private:
  nn::Module& module_;
  AveragedModelOptions options_;
  int64_t n_averaged_ = 0;
};

}  // namespace tessera::optim
