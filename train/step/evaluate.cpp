// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/step/evaluate.h"

#include "tessera/core/message.h"
#include "tessera/core/scopes.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/train/monitor/step_values.h"
#include "tessera/train/step/build_model.h"

#include <algorithm>
#include <cmath>

namespace tessera::train {
namespace {

DataLoader data_of(DataConfig like, const EvaluationPlan& plan, int parts, int part) {
  like.path = plan.path;
  like.mixture.clear();
  return {like,
          {.seq_len = plan.seq_len,
           .vocabulary = plan.vocabulary,
           .global_rows = plan.rows * parts,
           .first_row = plan.rows * part,
           .rows = plan.rows,
           .evaluation = true,
           .path_field = plan.path_field},
          plan.tokenizer};
}

}  // namespace

DataLoader evaluation_data(const DataConfig& like, const EvaluationPlan& plan, const Mesh& mesh) {
  const DataShare share = data_share(mesh);
  return data_of(like, plan, share.parts, share.part);
}

void check_evaluation_data(const DataConfig& like, const EvaluationPlan& plan) {
  (void)data_of(like, plan, 1, 0).info();
}

Evaluation evaluate(models::LanguageModel& model, DataLoader& data, int64_t steps,
                    const std::optional<nn::ContextParallelOptions>& cut) {
  const NoGrad guard;
  const nn::EvalMode evaluating(model);
  const auto [device, mesh] = model.placement();
  if (!mesh) {
    fail<UsageError>("evaluate",
                     "the model's parameters are plain: lay them out on a mesh, of one rank too");
  }
  const DataShare share = data_share(mesh);
  const int64_t whole = data.info().batches;
  const int64_t batches = steps < 0 ? whole : std::min(steps, whole);

  std::optional<BatchPlacer> placer;
  data.seek(0);
  StepValues sums;
  for (int64_t step = 0; step < batches; ++step) {
    const Batch batch = data.next();
    if (!placer) placer.emplace(model.metadata(batch.tokens.size(1)), share, device, cut);
    const PlacedBatch placed = placer->place(batch);
    const models::Loss result = model.loss(placed.tokens, placed.targets, placed.metadata);
    sums.add("loss", cast(result.sum, DType::f64));
    sums.add("tokens", result.count);
  }
  const auto totals = sums.read();
  if (totals[1].second == 0) {
    fail<DataError>("evaluate", "no token has a target in the ", counted(batches, "batch"), " of ",
                    data.info().path,
                    ": its documents are of one token each, or it is shorter than a row; give "
                    "other data");
  }
  const double loss = totals[0].second / totals[1].second;
  return {loss, std::exp(loss), static_cast<int64_t>(totals[1].second)};
}

}  // namespace tessera::train
