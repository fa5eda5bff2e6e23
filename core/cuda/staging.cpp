// SPDX-License-Identifier: Apache-2.0
// A batch of tokens and the values that change from step to step take some hundred kilobytes, so
// the ring holds those of several steps; parameters of a checkpoint pass through it in pieces.
#include "tessera/core/cuda/check_cuda_impl.h"
#include "tessera/core/cuda/staging_impl.h"

#include <algorithm>
#include <cstring>

namespace tessera {
namespace {

constexpr size_t kRing = size_t{8} << 20, kPiece = size_t{2} << 20, kAlignment = 64;

}  // namespace

Staging::Staging() {
  void* memory = nullptr;
  TESSERA_CUDA_CALL(cudaHostAlloc(&memory, kRing, cudaHostAllocDefault));
  ring_ = static_cast<std::byte*>(memory);
}

void Staging::send(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  for (size_t done = 0; done < bytes;) {
    const size_t size = std::min(kPiece, bytes - done), begin = place_for(size);
    const cudaEvent_t event = free_event();  // before the copy, since it may fail
    std::memcpy(ring_ + begin, source + done, size);
    cudaError_t status =
        cudaMemcpyAsync(target + done, ring_ + begin, size, cudaMemcpyHostToDevice, stream);
    if (status == cudaSuccess) status = cudaEventRecord(event, stream);
    if (status != cudaSuccess) {
      (void)cudaStreamSynchronize(stream);  // no event tells when the ring has been read
      idle_.push_back(event);
      check_cuda(status, "a copy to the device");
    }
    in_flight_.push_back({begin, next_, event});
    done += size;
  }
}

size_t Staging::place_for(size_t bytes) {
  const size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const size_t begin = next_ + size <= kRing ? next_ : 0;
  next_ = begin + size;
  // Those in flight follow each other in the ring: the oldest are the first in the way.
  const auto in_the_way = [&](const Sent& s) { return s.begin < next_ && begin < s.end; };
  while (std::ranges::any_of(in_flight_, in_the_way)) wait_for_oldest();
  return begin;
}

void Staging::wait_for_oldest() {
  TESSERA_CUDA_CALL(cudaEventSynchronize(in_flight_.front().event));
  retire_oldest();
}

void Staging::retire_oldest() {
  idle_.push_back(in_flight_.front().event);
  in_flight_.pop_front();
}

cudaEvent_t Staging::free_event() {
  while (!in_flight_.empty() && cudaEventQuery(in_flight_.front().event) == cudaSuccess)
    retire_oldest();
  (void)cudaGetLastError();  // "not ready" is no error
  if (idle_.empty()) {
    cudaEvent_t made = nullptr;
    TESSERA_CUDA_CALL(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
    return made;
  }
  const cudaEvent_t event = idle_.back();
  idle_.pop_back();
  return event;
}

}  // namespace tessera
