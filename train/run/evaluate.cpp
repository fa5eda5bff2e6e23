// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run/evaluate.h"

#include "tessera/core/scopes.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/world.h"

#include <algorithm>
#include <cmath>

namespace tessera::train {
namespace {

// This rank's summand of a partial sum.
double own(const Tensor& x) { return (x.is_distributed() ? local(x) : x).item(); }

DataLoader data_of(DataConfig like, const EvaluationPlan& plan, int ranks, int rank) {
  like.path = plan.path;
  return {like,
          {.seq_len = plan.seq_len,
           .vocabulary = plan.vocabulary,
           .global_rows = plan.rows * ranks,
           .first_row = plan.rows * rank,
           .rows = plan.rows,
           .evaluation = true,
           .path_field = plan.path_field}};
}

}  // namespace

DataLoader evaluation_data(const DataConfig& like, const EvaluationPlan& plan) {
  const World& world = World::current();
  return data_of(like, plan, world.size(), world.rank());
}

void check_evaluation_data(const DataConfig& like, const EvaluationPlan& plan) {
  (void)data_of(like, plan, 1, 0).info();
}

Evaluation evaluate(models::LanguageModel& model, DataLoader& data, int64_t steps) {
  const NoGrad guard;
  const nn::EvalMode evaluating(model);
  World& world = World::current();
  Layout by_rows;
  if (const Mesh mesh = model.placement().mesh) by_rows = Layout::of(mesh, {Shard(0)});
  const int64_t whole = data.info().batches;
  const int64_t batches = steps < 0 ? whole : std::min(steps, whole);

  models::Metadata metadata;
  data.seek(0);
  const Tensor sums = empty({2}, DType::f64);  // loss, tokens
  double* total = sums.data<double>();
  std::fill_n(total, 2, 0.0);
  for (int64_t step = 0; step < batches; ++step) {
    const Batch batch = data.next();
    const int64_t rows = batch.tokens.size(0), seq_len = batch.tokens.size(1);
    if (step == 0) metadata = model.metadata(seq_len);
    const auto placed = [&](const Tensor& part) {
      return by_rows && part.defined() ? wrap_local(part, by_rows, {rows * world.size(), seq_len})
                                       : part;
    };
    const models::Loss result =
        model.loss(placed(batch.tokens), placed(batch.targets),
                   metadata.with_documents(placed(batch.positions), placed(batch.documents)));
    total[0] += own(result.sum);
    total[1] += own(result.count);
  }
  world.group().all_reduce(sums)->wait();
  const double loss = total[0] / total[1];
  return {loss, std::exp(loss), static_cast<int64_t>(total[1])};
}

}  // namespace tessera::train
