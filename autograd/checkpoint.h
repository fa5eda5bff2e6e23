// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing: a function's saved tensors are not stored but computed again when
// backward needs them (Chen et al., "Training deep nets with sublinear memory cost", 2016). The
// graph is the one that the function recorded, so gradients have the same bits, hooks run once, and
// checkpoints nest. A policy may keep the outputs of chosen ops; recompute then replays them.
#pragma once

#include "tessera/autograd/autograd.h"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

/// An op that ran in a checkpointed function, as a policy sees it.
struct CheckpointedOp {
  std::string_view name;
  Tensors in, out;
  const std::vector<std::string>& module_path;
  int64_t earlier;  ///< calls of ops of this name that came before it in the function
};
/// True: the op's outputs are kept and it does not run again.
using KeepPolicy = std::function<bool(const CheckpointedOp&)>;

/// Keeps the outputs of the ops named, but for matmul every second one only, as torchtitan's
/// selective mode does; matmuls of modules whose path contains an entry of `recompute_paths` never.
TESSERA_API KeepPolicy keep_ops(std::vector<std::string> names,
                                std::vector<std::string> recompute_paths = {});
/// The ops that are dear to compute for the bytes that they give: attention, products, max, topk.
TESSERA_API const std::vector<std::string>& dear_ops();

struct CheckpointOptions {
  /// Which outputs are kept; empty: none, everything is computed again.
  KeepPolicy keep = {};
  /// Instead of `keep`: the share, in [0, 1], of the bytes stored without checkpointing that may be
  /// kept. What is kept is the choice of ops (knapsack, by each op's cost) that saves most time.
  std::optional<double> memory_budget = {};
  /// Recompute draws the random numbers that forward drew.
  bool preserve_rng_state = true;
  /// Recompute must save tensors of the shapes and dtypes that forward saved.
  bool determinism_check = true;
  /// Errors show the ops of both passes side by side where they differ.
  bool debug = false;
  /// Recompute ends with the last tensor that backward needs.
  bool early_stop = true;
};

using CheckpointedFunction = std::function<TensorList(Tensors)>;

/// fn(inputs), recorded; `fn` runs again during backward, so it must capture what it needs by value
/// or outlive the graph. Inputs are stored (through enclosing saved-tensor hooks). Without
/// gradients it is a plain call. AutogradError: recompute saved other tensors than forward did, or
/// backward was called inside fn. InPlaceError: an input or a parameter was written in between.
/// ValueError: a budget outside [0, 1], or one beside `keep`.
TESSERA_API TensorList checkpoint(const CheckpointedFunction& fn, const std::vector<Tensor>& inputs,
                                  const CheckpointOptions& options = {});

/// Ops called while it lives are none of a checkpointed function's: for what is done once and not
/// again when the function runs again (filling a cache).
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
