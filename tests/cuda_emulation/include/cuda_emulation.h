// SPDX-License-Identifier: Apache-2.0
// What the emulated libraries and the tests ask of emulated devices beyond CUDA's interface: steps
// that end when other ranks have come, where memory lies, and a record of what ran.
#pragma once

#include "cuda_runtime_api.h"

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace cuda_emulation {

/// One lock for all devices: every step of a stream runs with it held, on whichever thread waits.
CUDA_EMULATION_API std::recursive_mutex& runtime_mutex();
/// Appends a step that begins when the stream reaches it and ends once `end` says so, which what
/// other ranks do, threads or processes, makes it say: a thread that waits for it lets other
/// threads work meanwhile. Both are called with the lock held, `end` again and again.
CUDA_EMULATION_API cudaError_t enqueue_until(cudaStream_t stream, std::string what,
                                             std::function<void()> begin,
                                             std::function<bool()> end);
/// The device of a stream; of an allocation that holds all of these bytes, or -1.
[[nodiscard]] CUDA_EMULATION_API int device_of(cudaStream_t stream);
[[nodiscard]] CUDA_EMULATION_API int device_of(const void* bytes, size_t count);
/// What a library keeps of a device's memory for itself grows by so many bytes, or shrinks.
CUDA_EMULATION_API void keep_memory(int device, int64_t bytes);

/// A step of a stream: "kernel", "library" (a product or sort), the text of a collective, "record"
/// or "wait" of an event.
struct StepRecord {
  int device;
  const void* stream;
  std::string what;
  std::shared_ptr<const bool> event = nullptr;  ///< the record of an event that it makes or awaits
  size_t queued = 0, ran = 0;  ///< places in one order of all that was queued or ran; 0: not yet
};
/// Forgets the records of before, and keeps new ones until it is called with false.
CUDA_EMULATION_API void record_steps(bool on);
[[nodiscard]] CUDA_EMULATION_API std::vector<StepRecord> recorded_steps();

}  // namespace cuda_emulation
