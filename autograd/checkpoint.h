// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing: a function's saved tensors are not stored but recomputed when backward
// needs them (Chen et al., "Training deep nets with sublinear memory cost", 2016). Backward uses
// the graph recorded in forward, so gradients have the same bits, hooks run once, and checkpoints
// nest. A policy may store the outputs of chosen ops; recompute then reuses them.
#pragma once

#include "tessera/autograd/autograd.h"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

/// An op that ran in a checkpointed function, as passed to a policy.
struct CheckpointedOp {
  std::string_view name;
  bool expensive;  ///< a trait of its room
  Tensors in, out;
  const std::vector<std::string>& module_path;
  int64_t earlier;  ///< number of earlier ops of this name in the function
};
/// True: the op's outputs are stored and recompute does not run it.
using KeepPolicy = std::function<bool(const CheckpointedOp&)>;

/// Stores the outputs of the named ops.
TESSERA_API KeepPolicy keep_ops(std::vector<std::string> names);
/// torchtitan's selective mode: stores the outputs of expensive ops (attention, products of
/// matrices, max, topk ...), but of every second matmul only, and never of a matmul in a module
/// whose path contains an entry of `recompute_paths`.
TESSERA_API KeepPolicy keep_every_second_matmul(std::vector<std::string> recompute_paths = {});

struct CheckpointOptions {
  /// Which outputs are stored; empty: none, everything is recomputed.
  KeepPolicy keep = {};
  /// Instead of `keep`: the fraction, in [0, 1], of the activation bytes without checkpointing that
  /// may be stored. The stored outputs are those that save most time (knapsack over op costs).
  std::optional<double> memory_budget = {};
  /// Recompute draws the same random numbers as forward. False: it draws new ones, so dropout masks
  /// differ and gradients do not match the forward values.
  bool preserve_rng_state = true;
  /// Recompute must save tensors of the same shapes and dtypes as forward, else AutogradError.
  bool determinism_check = true;
  /// Records the ops of forward and of recompute; errors list both from where they differ.
  bool debug = false;
  /// Recompute stops after the last tensor that backward needs.
  bool early_stop = true;
};

using CheckpointedFunction = std::function<TensorList(Tensors)>;

/// Runs and records fn(inputs). `fn` runs again during backward, so its captures must be by value
/// or outlive the graph. Inputs are stored (through enclosing saved-tensor hooks). Under NoGrad it
/// is a plain call. AutogradError: recompute saved other tensors than forward, or backward was
/// called inside fn. InPlaceError: an input, or another tensor that it reads, was written in
/// between. ValueError: a budget outside [0, 1], or one together with `keep`.
TESSERA_API TensorList checkpoint(const CheckpointedFunction& fn, const std::vector<Tensor>& inputs,
                                  const CheckpointOptions& options = {});

/// Ops called during its lifetime do not belong to the enclosing checkpointed function: for work
/// that recompute does not repeat (filling a cache).
class TESSERA_API OutsideCheckpoint {
 public:
  OutsideCheckpoint();
  ~OutsideCheckpoint() { context_.interceptor = before_; }
  OutsideCheckpoint(const OutsideCheckpoint&) = delete;
  OutsideCheckpoint& operator=(const OutsideCheckpoint&) = delete;

 private:
  Context& context_;
  Interceptor* before_;
};

}  // namespace tessera
