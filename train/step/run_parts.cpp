// SPDX-License-Identifier: Apache-2.0
// Data is opened before the model is made: a thread reads it meanwhile.
#include "tessera/train/step/run_parts.h"

#include "tessera/models/pipeline/pipelined_model.h"
#include "tessera/models/pipeline/whole.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/step/evaluate.h"

#include <chrono>
#include <utility>

namespace tessera::train {
namespace {

std::unique_ptr<DataLoader> validation_data(const Config& config, const Mesh& mesh,
                                            const std::shared_ptr<const Tokenizer>& tokenizer) {
  const ValidationConfig& v = config.validation;
  if (!v.enable) return nullptr;
  return std::make_unique<DataLoader>(
      evaluation_data(config.dataloader,
                      {.path = v.dataset_path,
                       .path_field = "validation.dataset_path",
                       .seq_len = v.seq_len.value_or(config.training.seq_len),
                       .vocabulary = config.model.vocab_size(),
                       .rows = v.local_batch_size.value_or(config.training.local_batch_size),
                       .tokenizer = tokenizer},
                      mesh));
}

// Each rank reads its own rows of the global batch, which is the same on any mesh and for any
// number of micro-batches.
MicroBatchSource rows_of(DataLoader* data, BatchSource source, const BatchPlan& plan) {
  if (data) return [data](int64_t first) { return data->at(first); };
  return [source = std::move(source), plan](int64_t first) {
    return source(first + plan.first_row, plan.rows);
  };
}

}  // namespace

WorldOptions world_options(const Config& config) {
  const int64_t threads = config.debug.deterministic && config.threads == 0 ? 1 : config.threads;
  return {.threads = static_cast<int>(threads),
          .deterministic = config.debug.deterministic,
          .anomaly = config.debug.detect_anomaly,
          .init_timeout = std::chrono::seconds(config.comm.init_timeout_seconds),
          .train_timeout = std::chrono::seconds(config.comm.train_timeout_seconds),
          .flight_folder = config.dump_folder};
}

BatchPlan batch_plan(const Config& config, const DataShare& share) {
  const int64_t mine = config.step_sizes(share.parts).rows;
  return {.seq_len = config.training.seq_len,
          .vocabulary = config.model.vocab_size(),
          .global_rows = mine * share.parts,
          .first_row = mine * share.part,
          .rows = mine,
          .seed = static_cast<uint64_t>(config.debug.seed)};
}

optim::GradNorm RunParts::grad_norm(double max_norm) const {
  auto* const stages = dynamic_cast<models::PipelinedModel*>(model.get());
  if (!stages) return optim::grad_norm(parameters, max_norm);
  return optim::grad_norm(stages->own_parameters(), max_norm,
                          {&stages->group(), stages->placement().device});
}

RunParts make_run_parts(const Config& config, Device device,
                        const std::shared_ptr<const Tokenizer>& tokenizer, BatchSource source) {
  const auto seed = static_cast<uint64_t>(config.debug.seed);
  const TrainingConfig& training = config.training;
  RunParts parts;
  parts.mesh = make_mesh(config.parallelism);
  const DataShare share = data_share(parts.mesh);
  const BatchPlan plan = batch_plan(config, share);
  if (!source) parts.data = std::make_unique<DataLoader>(config.dataloader, plan, tokenizer);
  parts.validation = validation_data(config, parts.mesh, tokenizer);

  parts.model =
      build_model(config, parts.mesh, [&](nn::Module& model, const nn::LayoutOf& layouts) {
        nn::initialize(model, seed, layouts, device);
      });
  const StepSizes sizes = config.step_sizes(share.parts);
  BatchPlacer placer(parts.model->metadata(training.seq_len), share, device,
                     config.parallelism.sequence_cut());
  parts.parameters = nn::parameters(*parts.model);
  parts.optimizer = make_optimizer(config.optimizer, nn::named_parameters(*parts.model), seed,
                                   nn::named_parameters(models::whole_of(*parts.model)));
  parts.feed = std::make_unique<Feed>(
      rows_of(parts.data.get(), std::move(source), plan),
      FeedSizes{
          .rows = sizes.rows, .micro_batches = sizes.micro_batches, .seq_len = training.seq_len},
      *parts.model, std::move(placer), share);
  return parts;
}

}  // namespace tessera::train
