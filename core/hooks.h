// SPDX-License-Identifier: Apache-2.0
// The interfaces by which `call` reaches what lies above core: the tape (Recorder), the planner
// (Distributor), checkpointing (Interceptor) and pending communication (Progress). The Context
// holds them; with none set an op just runs.
#pragma once

#include "tessera/core/tensor_fwd.h"

namespace tessera {

struct OpRow;

/// Records ops for backward; implemented by autograd.
class Recorder {
 public:
  virtual ~Recorder() = default;
  virtual void record(const OpRow& row, const void* op, Tensors in, Outputs out) = 0;
  /// Called before an in-place op writes `x`; throws InPlaceError where autograd forbids it.
  virtual void check_write(const OpRow& row, const Tensor& x) = 0;
};

/// Runs ops on distributed tensors; implemented by dist.
class Distributor {
 public:
  virtual ~Distributor() = default;
  /// Plans and runs an op of which an input is distributed.
  virtual void call(const OpRow& row, const void* op, Tensors in, TensorList& out) = 0;
  /// The inputs of such an op where its plan sends them, as call would record them.
  virtual TensorList arrange(const OpRow& row, const void* op, Tensors in) = 0;
  /// Runs an op without inputs whose outputs lie as `like` does (replicated where that is partial).
  virtual void call_like(const OpRow& row, const void* op, const Tensor& like, TensorList& out) = 0;
  /// The gradient of a leaf, lying as the leaf does as far as no rank sends for it: cut where it is
  /// whole and the leaf is cut.
  virtual Tensor settle(const Tensor& gradient, const Tensor& leaf) = 0;
  /// The whole of a distributed tensor, plain, on every rank; not recorded.
  virtual Tensor whole(const Tensor& x) = 0;
};

/// Stands between a program and its ops while it is set; implemented by autograd's checkpointing.
/// What an op calls inside (plans, kernels) does not reach it; inputs that the op's plan sends
/// elsewhere have arrived.
class Interceptor {
 public:
  virtual ~Interceptor() = default;
  /// May give the outputs of an op that then does not run; it is recorded all the same.
  virtual bool replay(const OpRow& row, const void* op, Tensors in, TensorList& out) = 0;
  /// Called after an op that ran or was replayed.
  virtual void observe(const OpRow& row, const void* op, Tensors in, Tensors out) = 0;
};

/// Moves communication under way on; implemented by dist.
class Progress {
 public:
  virtual ~Progress() = default;
  virtual void poll() noexcept = 0;
};

}  // namespace tessera
