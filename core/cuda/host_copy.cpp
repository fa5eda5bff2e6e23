// SPDX-License-Identifier: Apache-2.0
#include "tessera/core/cuda/check_cuda_impl.h"
#include "tessera/core/cuda/host_copy_impl.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace tessera {

class HostCopies::Copy final : public HostCopy {
 public:
  Copy(std::shared_ptr<HostCopies> owner, Place place) : owner_(std::move(owner)), place_(place) {}
  ~Copy() override {
    const std::lock_guard lock(owner_->mutex_);
    owner_->idle_.push_back(place_);
  }
  [[nodiscard]] const void* wait() override {
    TESSERA_CUDA_CALL(cudaEventSynchronize(place_.event));
    return place_.memory;
  }
  [[nodiscard]] const Place& place() const { return place_; }

 private:
  std::shared_ptr<HostCopies> owner_;
  Place place_;
};

std::unique_ptr<HostCopy> HostCopies::begin(const void* from, size_t bytes, cudaStream_t stream) {
  auto copy = std::make_unique<Copy>(shared_from_this(), take(bytes));
  const Place& place = copy->place();
  TESSERA_CUDA_CALL(cudaMemcpyAsync(place.memory, from, bytes, cudaMemcpyDeviceToHost, stream));
  TESSERA_CUDA_CALL(cudaEventRecord(place.event, stream));
  return copy;
}

HostCopies::Place HostCopies::take(size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    const auto fits = std::ranges::find_if(idle_, [&](const Place& p) { return p.bytes >= bytes; });
    if (fits != idle_.end()) {
      const Place found = *fits;
      idle_.erase(fits);
      return found;
    }
  }
  Place made{.bytes = std::bit_ceil(std::max<size_t>(bytes, 4096))};
  TESSERA_CUDA_CALL(cudaHostAlloc(&made.memory, made.bytes, cudaHostAllocDefault));
  TESSERA_CUDA_CALL(cudaEventCreateWithFlags(&made.event, cudaEventDisableTiming));
  return made;
}

}  // namespace tessera
