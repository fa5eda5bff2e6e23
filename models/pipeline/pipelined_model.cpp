// SPDX-License-Identifier: Apache-2.0
// A forward without a schedule goes through the stages one after another, and the last one tells
// the others what it found.
#include "tessera/models/pipeline/pipelined_model.h"

#include "tessera/core/message.h"
#include "tessera/core/scopes.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/point_to_point.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/io/model_file.h"

namespace tessera::models {

PipelinedModel::PipelinedModel(const std::function<std::unique_ptr<LanguageModel>()>& make,
                               const Split& split, const PipelineSchedule& schedule, Mesh along,
                               Mesh mesh)
    : whole_(make()),
      ranks_{along, along.index("pp"), schedule.rank_of_stage, mesh},
      pipeline_(schedule, ranks_),
      first_row_{0} {
  if (const std::string fault = split_fault(whole_->parts(), split); !fault.empty())
    fail<ValueError>("pipeline", fault);
  if (static_cast<int>(split.size()) != ranks_.stages()) {
    fail<ValueError>("pipeline", counted(split.size(), "stage"), " of parts, and ",
                     counted(ranks_.stages(), "stage"), " of the schedule: give as many");
  }
  std::map<std::string, Tensor> own;
  for (int number = 0; number < ranks_.stages(); ++number) {
    std::unique_ptr<LanguageModel> model = make();
    model->keep(split[static_cast<size_t>(number)]);
    first_row_.push_back(first_row_.back() + model->load_shape()[0]);
    for (const nn::NamedParameter& t : nn::model_tensors(*model)) {
      std::vector<int>& holders = holders_[t.name];
      const bool again = std::ranges::find(holders, ranks_.rank_of(number)) != holders.end();
      if (holders.size() == 2 || (again && number + 1 != ranks_.stages())) {
        fail<ValueError>("pipeline", t.name, " is in stage ", number,
                         " too: a stage can share a weight with the last one alone");
      }
      if (!again) holders.push_back(ranks_.rank_of(number));
      else if (ranks_.has(number)) copies_.add(t.name, own.at(t.name), t.tensor);
      if (!again && ranks_.has(number)) own.emplace(t.name, t.tensor);
    }
    if (ranks_.has(number)) stages_.push_back({number, std::move(model)});
  }
}

void PipelinedModel::visit(nn::Visitor& visitor) {
  for (const Stage& stage : stages_) {
    const bool last = stage.number + 1 == ranks_.stages();
    visitor.members_of(*stage.model, last ? copies_.modules() : std::span<const std::string>());
  }
}

Placement PipelinedModel::placement() const { return stages_.front().model->placement(); }

std::vector<nn::Module*> PipelinedModel::units() {
  std::vector<nn::Module*> all;
  for (const Stage& stage : stages_) {
    const std::vector<nn::Module*> own = stage.model->units();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

std::vector<Tensor> PipelinedModel::own_parameters() {
  std::vector<Tensor> own;
  for (const nn::NamedParameter& p : nn::named_parameters(*this)) {
    if (holder_of(p.name) == ranks_.rank()) own.push_back(p.tensor);
  }
  return own;
}

void PipelinedModel::step(std::span<const StepBatch> batches, const StepPasses& passes,
                          const nn::Pipeline::Around& around) {
  copies_.refresh();
  std::map<int, nn::PipelineStage> stages;
  for (size_t i = 0; i < stages_.size(); ++i) {
    LanguageModel* const model = stages_[i].model.get();
    nn::PipelineStage& own = stages[stages_[i].number];
    own.module = model;
    own.forward = [i, model, batches, &passes](int micro_batch, const TensorList& inputs) {
      const StepBatch& batch = batches[static_cast<size_t>(micro_batch)];
      passes.begin(micro_batch);
      const StageOutput output =
          model->stage(inputs.empty() ? TensorList{batch.tokens} : inputs, batch.metadata);
      return nn::StageResult{output.next, passes.auxiliary(i, output)};
    };
    own.loss = [model, batches, &passes](int micro_batch, const TensorList& outputs) {
      return passes.loss(
          model->head_loss(outputs, batches[static_cast<size_t>(micro_batch)].targets));
    };
  }
  const Tensor& tokens = batches.front().tokens;
  pipeline_.step(stages, tokens.shape(), tokens.device(), around);
  add_shared_gradients();
}

// A sum of two has the same bits on both ranks, so the weight stays equal.
void PipelinedModel::add_shared_gradients() {
  copies_.add_gradients();
  const NoGrad guard;
  for (nn::NamedParameter& p : nn::named_parameters(*this)) {
    const std::vector<int>& holders = holders_.at(p.name);
    if (holders.size() == 1) continue;
    const int other = holders[holders[0] == ranks_.rank() ? 1 : 0];
    Tensor mine = p.tensor.grad();
    if (!mine.defined()) mine = zeros_like(p.tensor);
    const Tensor sent = contiguous(mine.is_distributed() ? local(mine) : mine);
    const Tensor received = empty(sent.shape(), sent.dtype(), sent.device());
    const Ref<Work> sending = send(ranks_.along, ranks_.axis, sent, other);
    recv(ranks_.along, ranks_.axis, received, other)->wait();
    sending->wait();
    const Tensor sum = sent + received;
    p.tensor.set_grad(mine.is_distributed() ? make_distributed(sum, mine.shape(), layout_of(mine))
                                            : sum);
  }
}

Tensor PipelinedModel::joined_rows(std::span<const Tensor> of_stages, bool load,
                                   Device device) const {
  const NoGrad guard;
  if (first_row_.back() == 0) return {};
  const DType dtype = load ? DType::i64 : DType::f64;
  std::vector<Tensor> rows;
  int64_t at = 0;
  const auto fill_to = [&](int64_t row) {
    if (row == at) return;
    Shape shape = load ? whole_->load_shape() : Shape{row - at};
    shape[0] = row - at;
    rows.push_back(zeros(shape, dtype, device));
  };
  for (size_t i = 0; i < stages_.size(); ++i) {
    const auto number = static_cast<size_t>(stages_[i].number);
    if (!of_stages[i].defined()) continue;
    fill_to(first_row_[number]);
    rows.push_back(cast(of_stages[i], dtype));
    at = first_row_[number + 1];
  }
  fill_to(first_row_.back());
  const Tensor all = cat(rows, 0);
  group().all_reduce(all);
  return all;
}

TensorList PipelinedModel::chain(const Tensor& input, const StageFunction& function) const {
  const NoGrad guard;
  copies_.refresh();
  nn::StageMessages& messages = pipeline_.messages();
  messages.begin(input.shape(), placement().device);
  TensorList passed{input}, results;
  for (const auto& [number, model] : stages_) {
    const bool last = number + 1 == ranks_.stages();
    if (number > 0 && !ranks_.has(number - 1)) passed = messages.receive_forward(number, 0);
    passed = function(*model, passed[0], last);
    if (last) results = passed;
    else if (!ranks_.has(number + 1)) messages.send_forward(number, 0, passed);
  }
  messages.finish();
  return messages.from_last(results);
}

Tensor PipelinedModel::features(const Tensor& x, const Metadata& metadata) const {
  return chain(x, [&](const LanguageModel& stage, const Tensor& in, bool) {
    return TensorList{stage.features(in, metadata)};
  })[0];
}

Tensor PipelinedModel::logits(const Tensor& features) const {
  const NoGrad guard;
  copies_.refresh();
  TensorList results;
  pipeline_.messages().begin(features.shape(), placement().device);
  if (ranks_.has(ranks_.stages() - 1)) results = {stages_.back().model->logits(features)};
  return pipeline_.messages().from_last(results)[0];
}

Tensor PipelinedModel::forward(const Tensor& tokens, const Metadata& metadata) const {
  return chain(tokens, [&](const LanguageModel& stage, const Tensor& in, bool last) {
    return TensorList{last ? stage.forward(in, metadata) : stage.features(in, metadata)};
  })[0];
}

Loss PipelinedModel::loss(const Tensor& tokens, const Tensor& targets, const Metadata& metadata,
                          const CrossEntropyOptions& options) const {
  const TensorList values =
      chain(tokens, [&](const LanguageModel& stage, const Tensor& in, bool last) -> TensorList {
        if (!last) return {stage.features(in, metadata)};
        const Loss found = stage.loss(in, targets, metadata, options);
        return {found.sum, found.count};
      });
  return {values[0], values[1]};
}

Tensor PipelinedModel::next_logits(const Tensor& tokens, Cache& cache) const {
  const int64_t seen = cache.layers.empty() ? 0 : cache.layers[0].length;
  return chain(tokens, [&](const LanguageModel& stage, const Tensor& in, bool) {
    for (nn::KvCache& c : cache.layers) c.length = seen;  // a stage before has counted the tokens
    return stage.next_stage({in}, tokens, cache);
  })[0];
}

bool PipelinedModel::force_load_balance() {
  bool any = false;
  for (const Stage& stage : stages_) any = stage.model->force_load_balance() || any;
  return any;
}

void PipelinedModel::before_optimizer_step(const Tensor& load, const Tensor& skip) {
  if (!load.defined()) return;
  for (const Stage& stage : stages_) {
    const auto number = static_cast<size_t>(stage.number);
    const int64_t begin = first_row_[number], end = first_row_[number + 1];
    if (begin < end) stage.model->before_optimizer_step(slice(load, 0, {begin, end}), skip);
  }
}

}  // namespace tessera::models
