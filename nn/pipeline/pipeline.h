// SPDX-License-Identifier: Apache-2.0
// Pipeline: runs the actions of this rank in a pipeline schedule over its stages. A stage is a
// function; what it gives is kept as its place in the graph, so its bytes go when they have been
// sent. Stages that follow each other on one rank pass tensors. Gradients add up in the parameters.
#pragma once

#include "tessera/autograd/graph_root.h"
#include "tessera/dist/schedules/schedule.h"
#include "tessera/nn/module.h"
#include "tessera/nn/pipeline/stage_messages.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace tessera::nn {

/// What the forward of a stage gives for a micro-batch.
struct StageResult {
  TensorList outputs = {};  ///< for the stage after it, or for `loss`
  Tensor auxiliary = {};    ///< 0-dim: added to the loss of the micro-batch; or undefined
};

struct PipelineStage {
  /// Its parameters stay whole from UNSHARD to RESHARD, if data parallelism has wrapped it.
  Module* module = nullptr;
  /// `inputs`: outputs of the stage before it; empty for the first stage.
  std::function<StageResult(int micro_batch, const TensorList& inputs)> forward;
  /// Of the last stage: the loss of a micro-batch, 0-dim, from its outputs. It begins the backward,
  /// so what it keeps exists for one micro-batch at a time.
  std::function<Tensor(int micro_batch, const TensorList& outputs)> loss = {};
};

class TESSERA_API Pipeline {
 public:
  /// Wraps an action: calls `run` once, and may measure before and after. On the CPU a rank waits
  /// for a message before the action that reads it: that is a second part of the receive.
  using Around = std::function<void(const Action& action, const std::function<void()>& run)>;

  /// UsageError: a schedule for another number of ranks.
  Pipeline(const PipelineSchedule& schedule, PipelineRanks ranks);

  /// One step: forward and backward of all micro-batches, each of the shape `micro_batch`, which is
  /// equal on all ranks, through the stages of this rank, by number. Collective over the ranks.
  /// Throws the errors of stages and messages. UsageError: a stage that is missing or another
  /// rank's, the last one without a loss; an earlier step that threw.
  void step(const std::map<int, PipelineStage>& stages, const Shape& micro_batch,
            Device device = kCpu, const Around& around = {});
  /// For what goes through the stages without a schedule.
  [[nodiscard]] StageMessages& messages() { return messages_; }

 private:
  /// A micro-batch in a stage, from its inputs to the gradients of all that it reads.
  struct InFlight {
    TensorList inputs = {};                    // leaves
    TensorList outputs = {};                   // until they go to the stage after it
    std::vector<GraphRoot> roots = {};         // outputs that require grad, then the auxiliary loss
    std::vector<TensorForm> forms = {};        // of those outputs
    TensorList gradients = {};                 // of those outputs; after backward of the inputs
    Tensor auxiliary_gradient = {};            // 1
    std::unique_ptr<SplitBackward> rest = {};  // between I and W
  };
  using Place = std::pair<int, int>;  // stage, micro-batch
  void check(const std::map<int, PipelineStage>& stages) const;
  /// The receive that `action` reads, or none.
  [[nodiscard]] std::optional<Action> receive_of(const Action& action) const;
  void run(const PipelineStage& stage, const Action& action);
  void forward(const PipelineStage& stage, const Action& action);
  void backward(const PipelineStage& stage, const Action& action);
  [[nodiscard]] InFlight& at(const Action& action);
  /// Erases a micro-batch of a stage when its backward is complete and its gradients are sent.
  void erase_if_done(const Action& action);

  PipelineRanks ranks_;
  int micro_batches_;
  std::vector<Action> actions_;
  StageMessages messages_;
  std::map<Place, InFlight> in_flight_;
  std::map<int, int> ended_;  // backwards of each stage in this step
  bool failed_ = false;       // a step threw, and others may have sent what nobody has received
};

}  // namespace tessera::nn
