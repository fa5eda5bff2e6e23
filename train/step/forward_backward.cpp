// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/step/forward_backward.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/draws.h"
#include "tessera/core/scopes.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/models/pipeline/pipelined_model.h"
#include "tessera/nn/parallel/policy.h"

#include <algorithm>

namespace tessera::train {
namespace {

void add_to(Tensor& sum, const Tensor& part) {
  if (!part.defined()) return;
  const NoGrad guard;
  sum = sum.defined() ? sum + part.detach() : part.detach();
}

// The terms of auxiliary losses, added to `values`, and their sum; undefined: none.
Tensor auxiliary_terms(const std::vector<models::NamedValue>& losses, const LossScale& scale,
                       StepValues& values) {
  Tensor total;
  for (const auto& [name, sum] : losses) {
    const Tensor term = sum * scale.of_tokens;
    values.add("loss/" + name, term);
    total = total.defined() ? total + term : term;
  }
  return total;
}

// The loss of a micro-batch as its part of the step's, added to `output`.
Tensor forward(models::LanguageModel& model, const PlacedBatch& batch, const LossScale& scale,
               StepOutput& output) {
  const models::Loss loss = model.loss(batch.tokens, batch.targets, batch.metadata);
  const Tensor total = loss.sum * scale.of_targets;
  output.values.add(std::string(kLossValue), total);
  const Tensor auxiliary = auxiliary_terms(loss.auxiliary, scale, output.values);
  add_to(output.load, loss.load);
  add_to(output.not_finite, loss.not_finite);
  return auxiliary.defined() ? total + auxiliary : total;
}

// The losses of all stages of the pipeline, equal on all ranks.
StepValues joined_losses(models::PipelinedModel& model, StepValues& own, Device device) {
  std::vector<std::string> names{std::string(kLossValue)};
  for (const std::string& name : model.auxiliary_losses()) names.push_back("loss/" + name);
  const NoGrad guard;
  const std::vector<std::string> known = own.names();
  std::vector<Tensor> values;
  for (const std::string& name : names) {
    const auto at = std::ranges::find(known, name);
    values.push_back(at == known.end()
                         ? zeros({}, DType::f64, device)
                         : cast(own.joined(static_cast<size_t>(at - known.begin())), DType::f64));
  }
  const Tensor sums = stack(values);
  model.group().all_reduce(sums);
  StepValues all;
  for (size_t i = 0; i < names.size(); ++i)
    all.append(names[i], select(sums, 0, static_cast<int64_t>(i)));
  return all;
}

Tensor joined_rows(const models::PipelinedModel& model, std::vector<Tensor> of_stages, bool load,
                   Device device) {
  for (Tensor& rows : of_stages)
    if (rows.defined() && rows.is_distributed()) rows = full_tensor(rows);
  return model.joined_rows(of_stages, load, device);
}

// All micro-batches through the stages of this rank.
StepOutput run_schedule(models::PipelinedModel& model, const MicroBatches& step,
                        const LossScale& scale, const Around& around) {
  std::vector<models::StepBatch> batches;
  for (const PlacedBatch& b : step.batches) batches.push_back({b.tokens, b.targets, b.metadata});
  StepValues own;
  std::vector<Tensor> load(model.stages().size()), not_finite(load.size());
  const models::StepPasses passes{.begin =
                                      [&](int micro_batch) {
                                        begin_micro_batch(static_cast<uint64_t>(step.step),
                                                          micro_batch * step.rows_at_once);
                                      },
                                  .loss =
                                      [&](const models::Loss& loss) {
                                        const Tensor total = loss.sum * scale.of_targets;
                                        own.add(std::string(kLossValue), total);
                                        return total;
                                      },
                                  .auxiliary =
                                      [&](size_t stage, const models::StageOutput& found) {
                                        add_to(load[stage], found.load);
                                        add_to(not_finite[stage], found.not_finite);
                                        return auxiliary_terms(found.auxiliary, scale, own);
                                      }};
  model.step(batches, passes, [&](const Action& action, const std::function<void()>& run) {
    const std::string_view name = !computes(action.kind)               ? "messages"
                                  : action.kind == ActionKind::forward ? "forward"
                                                                       : "backward";
    around({name, &action}, run);
  });
  const Device device = batches.front().tokens.device();
  return {joined_losses(model, own, device), joined_rows(model, std::move(load), true, device),
          joined_rows(model, std::move(not_finite), false, device)};
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
  if (auto* stages = dynamic_cast<models::PipelinedModel*>(&model))
    return run_schedule(*stages, step, scale, around);
  StepOutput output;
  for (size_t i = 0; i < step.batches.size(); ++i) {
    begin_micro_batch(static_cast<uint64_t>(step.step),
                      static_cast<int64_t>(i) * step.rows_at_once);
    const nn::MicroBatch micro(i + 1 == step.batches.size());
    Tensor total;
    around({"forward"}, [&] { total = forward(model, step.batches[i], scale, output); });
    around({"backward"}, [&] { backward(total); });
  }
  return output;
}

}  // namespace tessera::train
