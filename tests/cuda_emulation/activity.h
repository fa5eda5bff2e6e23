// SPDX-License-Identifier: Apache-2.0
// What emulated devices run, for a profiler's library: who launched it, and when it ran.
#pragma once

#include "include/cuda_runtime_api.h"

#include <cstddef>
#include <cstdint>
#include <string>

namespace cuda_emulation {

struct Activity {
  enum Kind { kernel, copy, fill } kind;
  std::string name;  // of a kernel's function, mangled
  int device;
  const void* stream;
  uint32_t call;  // of the runtime, that gave it to the stream
  size_t bytes;
  int64_t begin, end;  // ns of the host's steady clock
};

class ActivitySink {
 public:
  virtual ~ActivitySink() = default;
  /// On the thread that makes the call, once or more, when it gives a stream something to do.
  virtual void called(uint32_t call) = 0;
  /// On any thread, with the runtime's lock held.
  virtual void ran(const Activity& activity) = 0;
};

/// Null: nobody is told.
CUDA_EMULATION_API void watch_activity(ActivitySink* sink);

}  // namespace cuda_emulation
