// SPDX-License-Identifier: Apache-2.0
// The tape: records ops as nodes while gradients are enabled. One per rank, held by its Session.
#pragma once

#include "tessera/autograd/node.h"
#include "tessera/core/hooks.h"

#include <functional>
#include <vector>

namespace tessera {

class TESSERA_API Tape final : public Recorder {
 public:
  /// The calling rank's tape; UsageError if its Context has none.
  static Tape& current();
  void record(const OpRow& row, const void* op, Tensors in, Outputs out) override;
  void check_write(const OpRow& row, const Tensor& x) override;
  /// Makes `node` the latest of this tape.
  void add(Node& node);

  struct SavedHooks {
    PackHook pack;
    UnpackHook unpack;
  };
  std::vector<SavedHooks> saved_hooks;                 // the innermost pair is used
  std::vector<std::function<void()>> final_callbacks;  // run when the outermost backward ends
  int passes = 0;                                      // running backward passes
  uint64_t started = 0;                                // outermost passes so far
  uint64_t outermost = 0;                              // which of them is running or was the last
  Ref<Region> region;                                  // the innermost open one
  bool accumulates = false;                            // the running pass adds to grad() of leaves

 private:
  uint64_t sequence_ = 0;
};

}  // namespace tessera
