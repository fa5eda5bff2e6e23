// SPDX-License-Identifier: Apache-2.0
// The passes in their one order: tensor parallelism shards parameters first, expert parallelism
// gives experts a mesh of their own, data parallelism then shards what is left of them. Mixed
// precision is a policy of data parallelism, on one rank too.
#include "tessera/train/step/build_model.h"

#include "tessera/dist/dtensor.h"
#include "tessera/models/data_parallel.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/parallel/expert_parallel.h"
#include "tessera/nn/parallel/tensor_parallel.h"

#include <algorithm>
#include <utility>

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

Shape global_shape(const Tensor& rows, const DataShare& share) {
  return {rows.size(0) * share.parts, rows.size(1)};
}

// This rank's rows as a part of all; undefined stays so.
Tensor on_mesh(const Tensor& rows, const DataShare& share, Device device) {
  if (!rows.defined()) return rows;
  return wrap_local(to_device(rows, device), share.by_rows, global_shape(rows, share));
}

// Of (B, T) elements of T as batches have them, or undefined.
template <class T> bool same_values(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (!a.device().is_cpu() || !b.device().is_cpu() || a.shape() != b.shape()) return false;
  return std::equal(a.data<T>(), a.data<T>() + a.numel(), b.data<T>());
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

BatchPlacer::BatchPlacer(models::Metadata whole, DataShare share, Device device,
                         std::optional<nn::ContextParallelOptions> cut)
    : whole_(std::move(whole)), share_(std::move(share)), device_(device), cut_(std::move(cut)) {
  if (cut_) cut_->device = device;
}

PlacedBatch BatchPlacer::place(const Batch& rows) {
  const bool alike =
      shape_ == rows.tokens.shape() && same_values<int64_t>(positions_, rows.positions) &&
      same_values<int64_t>(documents_, rows.documents) && same_values<bool>(padding_, rows.padding);
  if (!alike) prepare(rows);
  const auto placed = [this](const Tensor& x) {
    const Tensor whole = on_mesh(x, share_, device_);
    return sequences_ ? sequences_->cut(whole) : whole;
  };
  return {placed(rows.tokens), placed(rows.targets), metadata_};
}

void BatchPlacer::prepare(const Batch& rows) {
  // What queries of a cut sequence see is found on the host.
  const Device found_on = cut_ ? kCpu : device_;
  metadata_ = whole_.with_documents(on_mesh(rows.positions, share_, found_on),
                                    on_mesh(rows.documents, share_, found_on),
                                    on_mesh(rows.padding, share_, found_on));
  if (cut_) {
    nn::ContextParallelOptions options = *cut_;
    if (options.balancer == nn::LoadBalancer::document_head_tail && !rows.documents.defined())
      options.balancer = nn::LoadBalancer::head_tail;
    sequences_.emplace(options, share_.by_rows, global_shape(rows.tokens, share_), metadata_.kinds);
    for (nn::AttentionMetadata& kind : metadata_.kinds) kind = sequences_->metadata(kind);
  }
  shape_ = rows.tokens.shape();
  positions_ = rows.positions;
  documents_ = rows.documents;
  padding_ = rows.padding;
}

}  // namespace tessera::train
