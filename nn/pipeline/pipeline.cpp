// SPDX-License-Identifier: Apache-2.0
// Gradients of a stage's parameters are reduced with its last backward, as without a pipeline, so
// REDUCE_GRAD has nothing left to do.
#include "tessera/nn/pipeline/pipeline.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/message.h"
#include "tessera/core/scopes.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/schedules/passes.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/parallel/policy.h"

#include <algorithm>

namespace tessera::nn {
namespace {

constexpr std::string_view kWho = "pipeline";

Tensor without_pending_sums(const Tensor& x) {
  if (!x.is_distributed() || !layout_of(x).has_partial()) return x;
  return redistribute(x, layout_of(x).without_partials());
}

// The gradient of a leaf in its own layout, taken out of it, since a waiting pass keeps the leaf;
// zeros if nothing depends on it.
Tensor gradient_of(Tensor leaf) {
  const NoGrad guard;
  const Tensor g = leaf.grad();
  leaf.set_grad({});
  if (!g.defined()) return zeros_like(leaf);
  return g.is_distributed() ? redistribute(g, layout_of(leaf)) : g;
}

// On a device its stream waits.
void wait_for(const TensorList& received) {
  for (const Tensor& t : received) {
    const Tensor bytes = t.is_distributed() ? local(t) : t;
    if (bytes.device().is_cpu()) (void)bytes.read_data();
  }
}

TensorList leaves_of(const TensorList& outputs) {
  TensorList leaves;
  for (const Tensor& t : outputs) {
    leaves.push_back(t.detach());
    if (t.requires_grad()) leaves.back().set_requires_grad();
  }
  return leaves;
}

}  // namespace

Pipeline::Pipeline(const PipelineSchedule& schedule, PipelineRanks ranks)
    : ranks_(std::move(ranks)),
      micro_batches_(schedule.micro_batches),
      messages_(ranks_, schedule.micro_batches) {
  if (static_cast<int>(schedule.ranks.size()) != ranks_.size()) {
    fail<UsageError>(kWho, "the schedule is for ", counted(schedule.ranks.size(), "rank"),
                     ", and the group has ", ranks_.size());
  }
  actions_ = all_actions(schedule)[static_cast<size_t>(ranks_.rank())];
}

void Pipeline::check(const std::map<int, PipelineStage>& stages) const {
  for (int stage = 0; stage < ranks_.stages(); ++stage) {
    if (ranks_.has(stage) == stages.contains(stage)) continue;
    fail<UsageError>(kWho, "stage ", stage, " lies on rank ", ranks_.rank_of(stage),
                     stages.contains(stage) ? ", and was given" : ", and is missing", " on rank ",
                     ranks_.rank());
  }
  const auto last = stages.find(ranks_.stages() - 1);
  if (last != stages.end() && !last->second.loss)
    fail<UsageError>(kWho, "the last stage, ", last->first, ", has no loss");
}

void Pipeline::step(const std::map<int, PipelineStage>& stages, const Shape& micro_batch,
                    Device device, const Around& around) {
  check(stages);
  if (std::exchange(failed_, true))
    fail<UsageError>(kWho, "a step has failed, and its messages may still come: make it anew");
  in_flight_.clear();
  ended_.clear();
  messages_.begin(micro_batch, device);
  const auto watched = [&](const Action& action, const std::function<void()>& f) {
    if (around) around(action, f);
    else f();
  };
  try {
    for (const Action& action : actions_) {
      for (const Action& part : parts_of(action)) {
        if (const auto receive = receive_of(part)) {
          const bool forward = part.kind == ActionKind::forward;
          watched(*receive, [&] { wait_for(forward ? at(part).inputs : at(part).gradients); });
        }
        watched(part, [&] { run(stages.at(part.stage), part); });
      }
    }
    messages_.finish();
  } catch (...) {
    in_flight_.clear();  // graphs and activations
    throw;
  }
  failed_ = false;
}

Pipeline::InFlight& Pipeline::at(const Action& action) {
  return in_flight_[{action.stage, action.micro_batch}];
}

std::optional<Action> Pipeline::receive_of(const Action& action) const {
  const std::optional<Action> input =
      computes(action.kind) ? input_of(action, ranks_.stages()) : std::optional<Action>();
  if (!input || ranks_.has(input->stage)) return std::nullopt;
  const bool forward = action.kind == ActionKind::forward;
  return Action{action.stage, forward ? ActionKind::recv_forward : ActionKind::recv_backward,
                action.micro_batch};
}

void Pipeline::run(const PipelineStage& on, const Action& action) {
  const int stage = action.stage, micro_batch = action.micro_batch;
  Module* const module = on.module;
  switch (action.kind) {
    case ActionKind::unshard:
      if (module && module->is_wrapped()) hold(*module);
      break;
    case ActionKind::reshard:
      if (module && module->is_wrapped()) reshard(*module);
      break;
    case ActionKind::recv_forward:
      at(action).inputs = messages_.receive_forward(stage, micro_batch);
      break;
    case ActionKind::forward: forward(on, action); break;
    case ActionKind::send_forward:
      messages_.send_forward(stage, micro_batch, std::exchange(at(action).outputs, {}));
      break;
    case ActionKind::recv_backward:
      at(action).gradients = messages_.receive_backward(stage, micro_batch, at(action).forms);
      break;
    case ActionKind::backward:
    case ActionKind::backward_input: backward(on, action); break;
    case ActionKind::backward_weight: {
      const MicroBatch micro(++ended_[stage] == micro_batches_);
      if (const auto rest = std::move(at(action).rest)) rest->finish();
      erase_if_done(action);
      break;
    }
    case ActionKind::send_backward:
      messages_.send_backward(stage, micro_batch, std::exchange(at(action).gradients, {}));
      erase_if_done(action);
      break;
    case ActionKind::reduce_grad:
    case ActionKind::overlap: break;
  }
}

void Pipeline::forward(const PipelineStage& on, const Action& action) {
  const int stage = action.stage, micro_batch = action.micro_batch;
  InFlight& now = at(action);
  StageResult result = on.forward(micro_batch, now.inputs);
  const bool last = stage + 1 == ranks_.stages();
  for (Tensor& t : result.outputs) t = without_pending_sums(t);
  const bool adds = result.auxiliary.defined() && result.auxiliary.requires_grad();
  if (adds) {
    const NoGrad guard;
    now.auxiliary_gradient = full_like(result.auxiliary, 1);
  }
  if (!last) {
    for (const Tensor& t : result.outputs) {
      if (!t.requires_grad()) continue;
      now.roots.emplace_back(t);
      now.forms.push_back(form_of(t));
    }
  }
  if (adds) now.roots.emplace_back(result.auxiliary);
  if (!last && ranks_.has(stage + 1))
    in_flight_[{stage + 1, micro_batch}].inputs = leaves_of(result.outputs);
  else now.outputs = std::move(result.outputs);
}

void Pipeline::backward(const PipelineStage& on, const Action& action) {
  const int stage = action.stage, micro_batch = action.micro_batch;
  const bool whole = action.kind == ActionKind::backward;
  InFlight& now = at(action);
  const MicroBatch micro(whole && ++ended_[stage] == micro_batches_);
  if (stage + 1 == ranks_.stages()) {
    const Tensor loss = on.loss(micro_batch, std::exchange(now.outputs, {}));
    if (loss.requires_grad()) {
      now.roots.insert(now.roots.begin(), GraphRoot(loss));
      const NoGrad guard;
      now.gradients = {full_like(loss, 1)};
    }
  }
  if (now.auxiliary_gradient.defined()) now.gradients.push_back(now.auxiliary_gradient);
  if (!now.roots.empty() && whole) tessera::backward(now.roots, now.gradients);
  else if (!now.roots.empty())
    now.rest = std::make_unique<SplitBackward>(now.roots, now.gradients, now.inputs);
  now.roots.clear();
  now.gradients.clear();
  for (const Tensor& leaf : now.inputs)
    if (leaf.requires_grad()) now.gradients.push_back(gradient_of(leaf));
  now.inputs.clear();
  if (stage > 0 && ranks_.has(stage - 1))
    in_flight_[{stage - 1, micro_batch}].gradients = std::exchange(now.gradients, {});
  erase_if_done(action);
}

void Pipeline::erase_if_done(const Action& action) {
  const InFlight& now = at(action);
  if (!now.rest && now.gradients.empty()) in_flight_.erase({action.stage, action.micro_batch});
}

}  // namespace tessera::nn
