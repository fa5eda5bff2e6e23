// SPDX-License-Identifier: Apache-2.0
// The passes change the model in the order of their list (parallel/parallelism.h).
#include "tessera/train/step/build_model.h"

#include "tessera/dist/dtensor.h"
#include "tessera/models/pipeline/pipelined_model.h"
#include "tessera/nn/lay_out.h"

#include <algorithm>
#include <utility>

namespace tessera::train {
namespace {

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

std::unique_ptr<models::LanguageModel> whole_or_stages(const Config& config, const Mesh& mesh) {
  const ParallelismConfig& p = config.parallelism;
  std::unique_ptr<models::LanguageModel> whole = config.model.make();
  if (!p.pipelines()) return whole;
  const models::Split split = p.split(whole->parts());
  const StepSizes sizes = config.step_sizes(data_share(mesh).parts);
  return std::make_unique<models::PipelinedModel>(
      [&config] { return config.model.make(); }, split,
      p.schedule(std::ssize(split), sizes.micro_batches), pipeline_mesh(p), mesh);
}

void apply_passes(models::LanguageModel& model, const Config& config, const Mesh& mesh) {
  if (config.debug.moe_force_load_balance) model.force_load_balance();
  for (const ParallelPass& pass : parallel_passes())
    if (pass.apply) pass.apply(model, config.pass_settings(), mesh);
}

// The modules that passes wrap: the model, or the stages that this rank has.
std::vector<models::LanguageModel*> parts_of_rank(models::LanguageModel& model) {
  const auto* pipelined = dynamic_cast<const models::PipelinedModel*>(&model);
  if (!pipelined) return {&model};
  std::vector<models::LanguageModel*> stages;
  for (const auto& stage : pipelined->stages()) stages.push_back(stage.model.get());
  return stages;
}

}  // namespace

std::unique_ptr<models::LanguageModel> build_model(const Config& config, const Mesh& mesh,
                                                   const FillModel& fill) {
  std::unique_ptr<models::LanguageModel> model = whole_or_stages(config, mesh);
  for (models::LanguageModel* part : parts_of_rank(*model)) apply_passes(*part, config, mesh);
  fill(*model, nn::laid_out(*model, mesh));
  return model;
}

StageInputs stage_inputs(const Config& config, const Mesh& mesh, const PlacedBatch& batch) {
  StageInputs all;
  TensorList passed{batch.tokens};
  const std::unique_ptr<models::LanguageModel> whole = config.model.make();
  for (const std::vector<std::string>& parts : config.parallelism.split(whole->parts())) {
    const std::unique_ptr<models::LanguageModel> stage = config.model.make();
    stage->keep(parts);
    apply_passes(*stage, config, mesh);
    nn::lay_out(*stage, nn::laid_out(*stage, mesh));
    all.emplace_back();
    TensorList leaves;
    for (const Tensor& t : passed) {
      nn::TensorForm& form = all.back().emplace_back(nn::form_of(t));
      if (form.states) form.states = layout_of(t).without_partials().states();
      leaves.push_back(nn::empty_of(form, mesh, kMeta));
      if (form.requires_grad) leaves.back().set_requires_grad();
    }
    passed = stage->stage(leaves, batch.metadata).next;
  }
  return all;
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
