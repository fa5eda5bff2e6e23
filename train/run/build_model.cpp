// SPDX-License-Identifier: Apache-2.0
// The passes in their one order: tensor parallelism shards parameters first, expert parallelism
// gives experts a mesh of their own, data parallelism then shards what is left of them. Mixed
// precision is a policy of data parallelism, on one rank too.
#include "tessera/train/run/build_model.h"

#include "tessera/dist/dtensor.h"
#include "tessera/models/data_parallel.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/parallel/expert_parallel.h"
#include "tessera/nn/parallel/tensor_parallel.h"

namespace tessera::train {
namespace {

nn::MixedPrecision precision_of(const Config& config) {
  const DType own = config.model.dtype(), param = config.training.mixed_precision_param,
              reduce = config.training.mixed_precision_reduce;
  nn::MixedPrecision precision;
  if (param != own) precision.param = param;
  if (own != DType::f64 && reduce != own) precision.reduce = reduce;
  return precision;
}

void parallelize(models::LanguageModel& model, const Config& config, const Mesh& mesh) {
  const ParallelismConfig& p = config.parallelism;
  const nn::ExpertParallel experts = p.experts(mesh.size());
  if (mesh.size("tp") > 1) {
    nn::tensor_parallel(
        model, mesh,
        model.tensor_parallel_plan({.sequence_parallel = p.enable_sequence_parallel,
                                    .loss_parallel = !p.disable_loss_parallel,
                                    .expert_parallel = experts.tensor_degree != mesh.size("tp")}));
  }
  if (experts.degree > 1) nn::expert_parallel(model, mesh, experts);
  nn::apply_activation_checkpoint(model.units(), config.activation_checkpoint);
  const nn::MixedPrecision precision = precision_of(config);
  const bool replicas = mesh.size("dp_replicate") > 1;
  if (replicas && mesh.size() == mesh.size("dp_replicate") * mesh.size("tp")) {
    models::replicate(model, mesh, "dp_replicate",
                      {.precision = precision, .accumulation = nn::Accumulation::whole});
    return;
  }
  models::fully_shard(
      model, mesh, {p.shard_axes(), {"dp_replicate"}},
      {.precision = precision,
       .reshard_after_forward = p.reshard(mesh.size()),
       .accumulation = replicas ? nn::Accumulation::replicas : nn::Accumulation::shards});
}

}  // namespace

std::unique_ptr<models::LanguageModel> build_model(const Config& config, const Mesh& mesh,
                                                   const FillModel& fill) {
  std::unique_ptr<models::LanguageModel> model = config.model.make();
  if (config.debug.moe_force_load_balance) model->force_load_balance();
  parallelize(*model, config, mesh);
  fill(*model, nn::laid_out(*model, mesh));
  return model;
}

PlacedBatch place_batch(const Batch& rows, const models::Metadata& whole, const DataShare& share,
                        Device device, const std::optional<nn::ContextParallelOptions>& cut) {
  const Shape global{rows.tokens.size(0) * share.parts, rows.tokens.size(1)};
  const auto placed = [&](const Tensor& part, Device where) {
    return part.defined() ? wrap_local(to_device(part, where), share.by_rows, global) : part;
  };
  // What queries of a cut sequence see is found on the host.
  const Device found_on = cut ? kCpu : device;
  PlacedBatch batch{
      placed(rows.tokens, device), placed(rows.targets, device),
      whole.with_documents(placed(rows.positions, found_on), placed(rows.documents, found_on))};
  if (!cut) return batch;
  nn::ContextParallelOptions options = *cut;
  options.device = device;
  if (options.balancer == nn::LoadBalancer::document_head_tail && !rows.documents.defined())
    options.balancer = nn::LoadBalancer::head_tail;
  const nn::SequenceCut sequences(options, share.by_rows, global, batch.metadata.of());
  batch.tokens = sequences.cut(batch.tokens);
  batch.targets = sequences.cut(batch.targets);
  for (nn::AttentionMetadata& kind : batch.metadata.kinds) kind = sequences.metadata(kind);
  return batch;
}

}  // namespace tessera::train
