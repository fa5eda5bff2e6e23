// SPDX-License-Identifier: Apache-2.0
// Choice of ops for a memory budget: a knapsack of bytes against saved recompute time. Also
// interceptors nested in another one (a profiler), which still sees every op.
#pragma once

#include "tessera/core/device.h"
#include "tessera/core/hooks.h"
#include "tessera/core/op_types.h"

#include <cstdint>
#include <vector>

namespace tessera {

/// An op's outputs: their bytes and the time to recompute them.
struct Choice {
  int64_t bytes = 0;
  double seconds = 0;
};
/// The choices that fit into `bytes` together and save most time; exact except for rounding bytes
/// to a thousandth of the budget.
std::vector<bool> choose_kept(const std::vector<Choice>& choices, int64_t bytes);
/// Estimated time of an op from its cost on `device`; only ratios of these times are meaningful.
double estimated_seconds(const Cost& cost, Device device);

/// An interceptor for checkpointing. It forwards each op to the interceptor outside all
/// checkpoints, but not to an enclosing checkpoint, because ops belong to the innermost one.
class NestedInterceptor : public Interceptor {
 public:
  explicit NestedInterceptor(Interceptor* before) : outer_(before) {
    if (const auto* nested = dynamic_cast<NestedInterceptor*>(before)) outer_ = nested->outer();
  }
  [[nodiscard]] Interceptor* outer() const { return outer_; }

 protected:
  bool outer_replays(const OpRow& row, const void* op, Tensors in, TensorList& out) {
    return outer_ && outer_->replay(row, op, in, out);
  }
  void outer_observes(const OpRow& row, const void* op, Tensors in, Tensors out) {
    if (outer_) outer_->observe(row, op, in, out);
  }

 private:
  Interceptor* outer_;
};

}  // namespace tessera
