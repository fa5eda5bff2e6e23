// SPDX-License-Identifier: Apache-2.0
// Which ops a memory budget keeps: a knapsack of bytes against the time that recompute saves. And
// interceptors that stand inside another one, which goes on seeing every op (a profiler).
#pragma once

#include "tessera/core/device.h"
#include "tessera/core/hooks.h"
#include "tessera/core/op_types.h"

#include <cstdint>
#include <vector>

namespace tessera {

/// An op's outputs: what they weigh, and what computing them again takes.
struct Choice {
  int64_t bytes = 0;
  double seconds = 0;
};
/// The choices that fit into `bytes` together and save most time; exact but for the rounding of
/// bytes to a thousandth of the budget.
std::vector<bool> choose_kept(const std::vector<Choice>& choices, int64_t bytes);
/// Time of an op by its cost on a machine like `device`; only the ratio of two such times means
/// something.
double estimated_seconds(const Cost& cost, Device device);

/// An interceptor of checkpointing. The one that stood before all of them is told of each op too;
/// an enclosing checkpoint is not, since the ops inside are the inner one's.
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
