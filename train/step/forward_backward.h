// SPDX-License-Identifier: Apache-2.0
// The forward and backward passes of a step, over all of its micro-batches. They leave gradients in
// the parameters and read nothing on the host, so a captured graph can hold them together with the
// update. Of a model over pipeline stages they run its schedule. Each micro-batch's loss is scaled
// by the counts of the whole step before backward, so gradients add up to the gradients of its
// mean.
#pragma once

#include "tessera/dist/schedules/action.h"
#include "tessera/models/model.h"
#include "tessera/train/monitor/step_values.h"
#include "tessera/train/step/build_model.h"

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace tessera::train {

/// A part of a step.
struct StepPart {
  /// "forward" or "backward" of a micro-batch, "messages" of a pipeline, "data" or "place".
  std::string_view name;
  const Action* action = nullptr;  ///< in the schedule of a pipeline
  /// Of an action as schedules write it, `2F0`; else the name.
  [[nodiscard]] std::string text() const {
    return action ? tessera::text(*action) : std::string(name);
  }
};
/// Wraps a part of a step: calls `run` once, and may measure before and after.
using Around = std::function<void(const StepPart& part, const std::function<void()>& run)>;
/// Calls `run` and measures nothing.
[[nodiscard]] inline Around unwatched() {
  return [](const StepPart&, const std::function<void()>& run) { run(); };
}

/// All micro-batches of a step.
struct MicroBatches {
  std::span<const PlacedBatch> batches;
  int64_t step = 0;          ///< steps before this one: with the rows, decides random numbers
  int64_t rows_at_once = 0;  ///< of a micro-batch, over all ranks
};

/// Factors of sums over tokens. 0-dim tensors and not attributes, so that new counts
/// need no new plans.
struct LossScale {
  Tensor of_targets;  ///< () 1 / tokens of the step with a target: of the loss
  Tensor of_tokens;   ///< () 1 / tokens of the step: of auxiliary losses
};
/// `counts`: (2 or more) f64, tokens with a target and tokens. `model`: dtype of its parameters.
[[nodiscard]] TESSERA_API LossScale loss_scale(const Tensor& counts, DType model);

/// Results of the passes of a step.
struct StepOutput {
  StepValues values;       ///< `loss`, then each auxiliary loss as `loss/<name>`
  Tensor load = {};        ///< as models::Loss, summed over micro-batches; or undefined
  Tensor not_finite = {};  ///< as models::Loss, summed; or undefined
};
/// Collective over the model's mesh. Throws the errors of ops and collectives.
[[nodiscard]] TESSERA_API StepOutput forward_backward(models::LanguageModel& model,
                                                      const MicroBatches& step,
                                                      const LossScale& scale,
                                                      const Around& around = unwatched());

}  // namespace tessera::train
