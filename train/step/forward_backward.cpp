// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/step/forward_backward.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/draws.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/parallel/policy.h"

namespace tessera::train {
namespace {

void add_to(Tensor& sum, const Tensor& part) {
  if (!part.defined()) return;
  const NoGrad guard;
  sum = sum.defined() ? sum + part.detach() : part.detach();
}

// The loss of a micro-batch as its part of the step's, added to `output`.
Tensor forward(models::LanguageModel& model, const PlacedBatch& batch, const LossScale& scale,
               StepOutput& output) {
  const models::Loss loss = model.loss(batch.tokens, batch.targets, batch.metadata);
  Tensor total = loss.sum * scale.of_targets;
  output.values.add(std::string(kLossValue), total);
  for (const auto& [name, sum] : loss.auxiliary) {
    const Tensor term = sum * scale.of_tokens;
    output.values.add("loss/" + name, term);
    total = total + term;
  }
  add_to(output.load, loss.load);
  add_to(output.not_finite, loss.not_finite);
  return total;
}

}  // namespace

LossScale loss_scale(const Tensor& counts, DType model) {
  const NoGrad guard;
  const Tensor scales =
      cast(reciprocal(clamp(slice(counts, 0, {0, 2}), {.min = 1})), compute_dtype(model));
  return {select(scales, 0, 0), select(scales, 0, 1)};
}

StepOutput forward_backward(models::LanguageModel& model, const MicroBatches& step,
                            const LossScale& scale, const Around& around) {
  StepOutput output;
  for (size_t i = 0; i < step.batches.size(); ++i) {
    begin_micro_batch(static_cast<uint64_t>(step.step),
                      static_cast<int64_t>(i) * step.rows_at_once);
    const nn::MicroBatch micro(i + 1 == step.batches.size());
    Tensor total;
    around("forward", [&] { total = forward(model, step.batches[i], scale, output); });
    around("backward", [&] { backward(total); });
  }
  return output;
}

}  // namespace tessera::train
