// SPDX-License-Identifier: Apache-2.0
// PipelinedModel: a language model whose parts lie on the ranks of a pipeline. Each rank has some
// of its stages; validation, evaluation and generation use it as they use a model on one rank, and
// a step of training runs a schedule. Its parameters have the names that they have in the whole
// model.
#pragma once

#include "tessera/models/model.h"
#include "tessera/models/pipeline/copied_weights.h"
#include "tessera/models/pipeline/split.h"
#include "tessera/nn/pipeline/pipeline.h"

#include <functional>
#include <memory>

namespace tessera::models {

/// A micro-batch of a step.
struct StepBatch {
  Tensor tokens, targets;  ///< (B, T) i64
  Metadata metadata;
};

/// What a step does with what stages give.
struct StepPasses {
  /// Before the forward of a micro-batch in each stage.
  std::function<void(int micro_batch)> begin;
  /// The loss of a micro-batch, scaled: the last stage's `sum` and `count`.
  std::function<Tensor(const Loss& loss)> loss;
  /// Auxiliary losses of a stage, scaled and added up; undefined: none. `stage`: its place among
  /// stages().
  std::function<Tensor(size_t stage, const StageOutput& output)> auxiliary;
};

class TESSERA_API PipelinedModel final : public LanguageModel {
 public:
  struct Stage {
    int number = 0;
    std::unique_ptr<LanguageModel> model;
  };
  /// `make` gives the whole model without bytes; `split`: the parts of each stage, which lie on the
  /// axis `pp` of `along` as `schedule` says; `mesh`: where this rank's stages compute, empty:
  /// plain. ValueError: split_fault, another number of stages.
  PipelinedModel(const std::function<std::unique_ptr<LanguageModel>()>& make, const Split& split,
                 const PipelineSchedule& schedule, Mesh along, Mesh mesh = {});

  /// The stages of this rank, in order: passes over modules wrap these.
  [[nodiscard]] std::span<const Stage> stages() const { return stages_; }
  /// The whole model, without bytes.
  [[nodiscard]] LanguageModel& whole() { return *whole_; }
  /// The ranks of the pipeline.
  [[nodiscard]] const nn::PipelineRanks& ranks() const { return ranks_; }
  [[nodiscard]] ProcessGroup& group() const { return ranks_.along.group(ranks_.axis); }
  /// The first rank of the pipeline that has the parameter or buffer of this name.
  [[nodiscard]] int holder_of(const std::string& name) const { return holders_.at(name).front(); }
  /// The parameters of this rank that no rank before it in the pipeline has: with tied embeddings
  /// two ranks have one weight.
  [[nodiscard]] std::vector<Tensor> own_parameters();
  /// Forward and backward of the micro-batches of a step, as many as the schedule has, of one
  /// shape. Then a weight that two ranks have has the gradient of both uses. Collective over the
  /// pipeline.
  void step(std::span<const StepBatch> batches, const StepPasses& passes,
            const nn::Pipeline::Around& around = {});
  /// What each stage takes in training for micro-batches of this shape, as
  /// StageMessages::set_input_forms.
  void set_input_forms(const Shape& micro_batch,
                       std::span<const std::vector<nn::TensorForm>> inputs) {
    pipeline_.messages().set_input_forms(micro_batch, inputs);
  }
  /// Loss::load or (f64) Loss::not_finite of the whole model, on `device`, from those of this
  /// rank's stages, in order, which are plain and there. Undefined: no stage has experts.
  /// Collective over the pipeline.
  [[nodiscard]] Tensor joined_rows(std::span<const Tensor> of_stages, bool load,
                                   Device device) const;

  void visit(nn::Visitor& visitor) override;
  [[nodiscard]] int64_t vocab_size() const override { return whole_->vocab_size(); }
  [[nodiscard]] int64_t max_seq_len() const override { return whole_->max_seq_len(); }
  [[nodiscard]] Placement placement() const override;
  [[nodiscard]] std::vector<nn::Module*> units() override;
  [[nodiscard]] double flops(std::span<const int64_t> documents) override {
    return whole_->flops(documents);
  }
  [[nodiscard]] int64_t idle_parameters() override { return whole_->idle_parameters(); }
  [[nodiscard]] nn::TensorParallelPlan tensor_parallel_plan(
      const nn::TensorParallelOptions& options) const override {
    return whole_->tensor_parallel_plan(options);
  }

  // As of a model on one rank, with results on all ranks. Collective over the pipeline.
  using LanguageModel::forward;
  [[nodiscard]] Tensor features(const Tensor& x, const Metadata& metadata) const override;
  [[nodiscard]] Tensor logits(const Tensor& features) const override;
  [[nodiscard]] Tensor forward(const Tensor& tokens, const Metadata& metadata) const override;
  /// Without auxiliary losses and loads, and without gradients: for evaluation.
  [[nodiscard]] Loss loss(const Tensor& tokens, const Tensor& targets, const Metadata& metadata,
                          const CrossEntropyOptions& options = {}) const override;
  [[nodiscard]] Cache make_cache(int64_t capacity) const override {
    return whole_->make_cache(capacity);
  }
  [[nodiscard]] Tensor next_logits(const Tensor& tokens, Cache& cache) const override;

  [[nodiscard]] std::vector<std::string> auxiliary_losses() const override {
    return whole_->auxiliary_losses();
  }
  [[nodiscard]] Shape load_shape() const override { return whole_->load_shape(); }
  bool force_load_balance() override;
  [[nodiscard]] std::vector<NamedValue> statistics(const Tensor& load) const override {
    return whole_->statistics(load);
  }
  [[nodiscard]] std::string routing_fault(const Tensor& not_finite) const override {
    return whole_->routing_fault(not_finite);
  }
  void before_optimizer_step(const Tensor& load, const Tensor& skip) override;

 protected:
  [[nodiscard]] Metadata plain_metadata(int64_t length, int64_t start) const override {
    return plain_metadata_of_part(length, start, start + length);
  }
  [[nodiscard]] Metadata plain_metadata_of_part(int64_t length, int64_t start,
                                                int64_t whole) const override {
    return plain_metadata_of(*whole_, length, start, whole);
  }

 private:
  /// What a stage makes of `x`, from the stage before it or the model's input.
  using StageFunction =
      std::function<TensorList(const LanguageModel& stage, const Tensor& x, bool last)>;
  /// What the last stage makes of `input` behind all others, on all ranks.
  [[nodiscard]] TensorList chain(const Tensor& input, const StageFunction& function) const;
  void add_shared_gradients();

  std::unique_ptr<LanguageModel> whole_;  // without bytes
  nn::PipelineRanks ranks_;
  mutable nn::Pipeline pipeline_;
  std::vector<Stage> stages_;
  std::map<std::string, std::vector<int>> holders_;  // ranks of each parameter and buffer
  mutable CopiedWeights copies_;
  std::vector<int64_t> first_row_;  // of each stage in Loss::load, then the number of rows
};

}  // namespace tessera::models
