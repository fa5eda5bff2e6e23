// SPDX-License-Identifier: Apache-2.0
// StageMessages: tensors between the stages of a pipeline, and their gradients on the way back.
// What a stage gives in training for a shape of micro-batch is described once by a message of its
// own; later micro-batches of that shape send bytes alone. Without recorded gradients each message
// is described: what is asked of a model differs between calls of one shape. Nobody waits for a
// send, and a receive waits when its bytes are used.
#pragma once

#include "tessera/dist/layout.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace tessera::nn {

/// The ranks along a pipeline, and what lies on each.
struct PipelineRanks {
  Mesh along = {};  ///< with the axis of the pipeline, on which rank i runs the schedule's rank i
  int axis = 0;
  std::vector<int> rank_of_stage = {};
  /// Where tensors between stages are distributed on this rank; empty: they are plain.
  Mesh mesh = {};
  [[nodiscard]] int stages() const { return static_cast<int>(rank_of_stage.size()); }
  [[nodiscard]] int rank_of(int stage) const { return rank_of_stage[static_cast<size_t>(stage)]; }
  [[nodiscard]] int size() const { return along.size(axis); }
  [[nodiscard]] int rank() const { return along.coordinate(axis); }
  [[nodiscard]] bool has(int stage) const { return rank_of(stage) == rank(); }
};

/// A tensor between stages, without its bytes.
struct TensorForm {
  Shape shape;
  DType dtype = DType::f32;
  bool requires_grad = false;
  std::optional<AxisStates> states = {};  ///< of its layout; none: it is plain
  bool operator==(const TensorForm&) const = default;
};
[[nodiscard]] TESSERA_API TensorForm form_of(const Tensor& t);
/// A tensor of this form, distributed over `mesh` if the form is. Its values are undefined.
[[nodiscard]] TESSERA_API Tensor empty_of(const TensorForm& form, Mesh mesh, Device device);

class TESSERA_API StageMessages {
 public:
  StageMessages(PipelineRanks ranks, int micro_batches);

  /// The shape of the micro-batches from now on, equal on all ranks, and the device that this rank
  /// computes on.
  void begin(const Shape& micro_batch, Device device);
  /// For micro-batches of this shape in training: what each stage takes, by stage. No message
  /// describes it then.
  void set_input_forms(const Shape& micro_batch, std::span<const std::vector<TensorForm>> inputs);
  /// Sends what `stage` gives to the stage after it. UsageError: more than 8 tensors; others than
  /// it has described for this shape.
  void send_forward(int stage, int micro_batch, const TensorList& outputs);
  /// The inputs of `stage` from the stage before it: leaves, which require grad if they did there.
  [[nodiscard]] TensorList receive_forward(int stage, int micro_batch);
  /// Sends gradients of inputs that `stage` received, in their layouts.
  void send_backward(int stage, int micro_batch, const TensorList& gradients);
  /// The gradients of outputs of `stage`, in their layouts.
  [[nodiscard]] TensorList receive_backward(int stage, int micro_batch,
                                            std::span<const TensorForm> outputs);
  /// The tensors that the last stage gives, on all ranks; others pass none. Not recorded.
  [[nodiscard]] TensorList from_last(const TensorList& results);
  /// Waits until all messages have left. Throws their errors.
  void finish();

 private:
  /// A stage, and the shape of its micro-batch.
  using Key = std::pair<int, std::vector<int64_t>>;
  [[nodiscard]] Key key(int stage) const;
  [[nodiscard]] int tag(int stage, bool forward, int micro_batch) const;
  [[nodiscard]] Tensor receive(const TensorForm& form, int from, int tag) const;
  void send(const Tensor& x, int to, int tag);

  PipelineRanks ranks_;
  int micro_batches_;
  std::vector<int64_t> shape_;  // of the micro-batch
  Device device_ = kCpu;
  std::map<Key, std::vector<TensorForm>> inputs_;  // of stages, as they were described
  std::vector<Ref<Work>> sent_;
};

}  // namespace tessera::nn
