// SPDX-License-Identifier: Apache-2.0
// Interfaces through which `call` reaches modules above core: the tape (Recorder), the planner
// (Distributor), checkpointing (Interceptor) and pending communication (Progress). The Context
// has a pointer to each; without them an op just runs.
#pragma once

#include "tessera/core/tensor_fwd.h"

#include <string>

namespace tessera {

struct OpRow;

/// Records ops for backward; implemented by autograd.
class Recorder {
 public:
  virtual ~Recorder() = default;
  virtual void record(const OpRow& row, const void* op, Tensors in, Outputs out) = 0;
  /// Called before an in-place op writes `x`; throws InPlaceError if autograd forbids it.
  virtual void check_write(const OpRow& row, const Tensor& x) = 0;
};

/// Runs ops on distributed tensors; implemented by dist.
class Distributor {
 public:
  virtual ~Distributor() = default;
  /// Plans and runs an op with a distributed input.
  virtual void call(const OpRow& row, const void* op, Tensors in, TensorList& out) = 0;
  /// The inputs of such an op in the layouts of its plan, as call would record them.
  virtual TensorList arrange(const OpRow& row, const void* op, Tensors in) = 0;
  /// Runs an op without inputs whose outputs get the layout of `like` (replicated where `like` is
  /// partial).
  virtual void call_like(const OpRow& row, const void* op, const Tensor& like, TensorList& out) = 0;
  /// The gradient of a leaf, in the leaf's layout as far as that needs no communication: sharded
  /// where the gradient is replicated and the leaf is sharded.
  virtual Tensor settle(const Tensor& gradient, const Tensor& leaf) = 0;
  /// The global value of a distributed tensor as a plain tensor on every rank; not recorded.
  virtual Tensor whole(const Tensor& x) = 0;
  /// The layout of a distributed tensor as printed: `mesh(dp=2) {dp: Shard(0)}`. UsageError: its
  /// world has ended.
  virtual std::string layout_text(const Tensor& x) = 0;
};

/// Intercepts the ops of a program while it is set; implemented by autograd's checkpointing. It
/// does not see what an op calls internally (plans, kernels); it sees inputs after the
/// redistributions of the op's plan.
class Interceptor {
 public:
  virtual ~Interceptor() = default;
  /// May supply the outputs of an op, which then does not run but is still recorded.
  virtual bool replay(const OpRow& row, const void* op, Tensors in, TensorList& out) = 0;
  /// Called after an op that ran or was replayed.
  virtual void observe(const OpRow& row, const void* op, Tensors in, Tensors out) = 0;
};

/// Advances pending communication; implemented by dist.
class Progress {
 public:
  virtual ~Progress() = default;
  virtual void poll() noexcept = 0;
};

}  // namespace tessera
