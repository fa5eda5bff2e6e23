// SPDX-License-Identifier: Apache-2.0
// A segment is an allocation of the driver's own, and goes back only when another is wanted that
// does not fit: cudaMalloc and cudaFree wait for the whole device.
#include "tessera/core/cuda/allocator_impl.h"
#include "tessera/core/cuda/check_cuda_impl.h"
#include "tessera/core/cuda/lanes_impl.h"
#include "tessera/core/out_of_memory.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace tessera {
namespace {

// Part of the held memory that a new segment has beyond its block.
constexpr int64_t kSlack = 8;
// What kernels and libraries count on.
constexpr int64_t kAlignment = 256;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool caching() {
  static const bool on = [] {
    const char* const none = std::getenv("TESSERA_NO_CUDA_MEMORY_CACHING");
    return !none || std::string_view(none) != "1";
  }();
  return on;
}

bool captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

}  // namespace

class StreamAllocator::OfDevice final : public SegmentSource {
 public:
  explicit OfDevice(int device) : device_(device) {}
  std::byte* obtain(int64_t bytes) override {
    const OnDevice there(device_);
    check_cuda(there.status(), "cudaSetDevice");
    void* segment = nullptr;
    const cudaError_t status = cudaMalloc(&segment, static_cast<size_t>(bytes));
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return nullptr;
    }
    check_cuda(status, "cudaMalloc");
    return static_cast<std::byte*>(segment);
  }
  // At the end of the process CUDA may be gone already: then the error means nothing.
  void give_back(std::byte* segment, int64_t) noexcept override {
    const OnDevice there(device_);
    if (cudaFree(segment) != cudaSuccess) (void)cudaGetLastError();
  }

 private:
  const int device_;
};

// What a captured kernel has used, each launch of the graph uses again, so nothing goes back before
// the end.
class StreamAllocator::OfParent final : public SegmentSource {
 public:
  explicit OfParent(StreamAllocator& parent) : parent_(parent) {}
  ~OfParent() override {
    for (const Segment& s : segments_) parent_.arena_.free(s.begin, s.bytes);
  }
  std::byte* obtain(int64_t bytes) override {
    for (Segment& s : segments_) {
      if (s.spare && s.bytes >= bytes) {
        s.spare = false;
        return s.begin;
      }
    }
    std::byte* const begin =
        parent_.held_ ? parent_.arena_.allocate_cached(bytes) : parent_.arena_.allocate(bytes);
    if (begin) segments_.push_back({begin, bytes});
    return begin;
  }
  void give_back(std::byte* segment, int64_t) noexcept override {
    for (Segment& s : segments_) s.spare |= s.begin == segment;
  }

 private:
  struct Segment {
    std::byte* begin;
    int64_t bytes;
    bool spare = false;
  };
  StreamAllocator& parent_;
  std::vector<Segment> segments_;
};

StreamAllocator::StreamAllocator(DeviceMemory& memory, cudaStream_t stream, cudaStream_t user)
    : memory_(memory),
      stream_(stream),
      user_(user),
      source_(std::make_unique<OfDevice>(memory.device())),
      arena_(*source_, kSlack) {
  const std::lock_guard lock(memory_.mutex());
  memory_.add(*this);
}

StreamAllocator::StreamAllocator(const Ref<StreamAllocator>& parent, int64_t reserve)
    : parent_(parent),
      memory_(parent->memory_),
      stream_(parent->stream_),
      user_(parent->user_),
      source_(std::make_unique<OfParent>(*parent)),
      arena_(*source_, kSlack) {
  const std::lock_guard lock(memory_.mutex());
  if (reserve > 0) {
    // Room for the gaps that the best fit leaves between blocks.
    const int64_t with_room = aligned(reserve + reserve / 8);
    std::byte* const block = take(with_room);
    if (!block) fail<OutOfMemory>("capture", memory_.exhausted(with_room));
    arena_.free(block, with_room);
  }
  memory_.add(*this);
}

StreamAllocator::~StreamAllocator() {
  const std::lock_guard lock(memory_.mutex());
  memory_.remove(*this);
  take_back_all();
  arena_.release();
  source_.reset();
}

void* StreamAllocator::allocate(int64_t bytes) {
  const int64_t size = aligned(bytes);
  const std::lock_guard lock(memory_.mutex());
  if (held_ || closed_)
    fail<StorageError>("allocate",
                       closed_ ? "the capture that these bytes were made in has ended"
                               : "a CUDA graph is captured on their stream",
                       ": bytes that were released cannot be regained; make a new tensor");
  if (!parent_) {
    while (!waiting_.empty() && idle(waiting_.front())) {
      take_back(waiting_.front());
      waiting_.pop_front();
    }
  }
  std::byte* block = take(size);
  if (!block && !parent_) {
    memory_.release();
    block = take(size);
  }
  if (!block) {
    fail<OutOfMemory>("allocate", memory_.exhausted(bytes),
                      parent_ ? ". A capture takes what is cached, and no more of the device: do "
                                "the same work once before it, or reserve more"
                              : "");
  }
  memory_.took(size);
  return block;
}

// Null where there is no more.
std::byte* StreamAllocator::take(int64_t size) {
  if (caching() || parent_) return arena_.allocate(size);
  void* block = nullptr;
  const cudaError_t status = cudaMallocAsync(&block, static_cast<size_t>(size), stream_);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  check_cuda(status, "cudaMallocAsync");
  return uncached_.emplace(static_cast<std::byte*>(block), size).first->first;
}

void StreamAllocator::free(void* block, int64_t bytes) noexcept {
  const int64_t size = aligned(bytes);
  auto* const begin = static_cast<std::byte*>(block);
  const std::lock_guard lock(memory_.mutex());
  memory_.gave_back(size);
  if (uses_.empty() && user_ == stream_ && !held_) return put_back(begin, size);
  Waiting freed{begin, size, end_uses(begin, size), {}};
  record(freed);
  // While it is captured, its stream takes no block that is freed to the driver.
  const bool waits =
      !freed.streams.empty() || !freed.events.empty() || (held_ && uncached_.contains(begin));
  if (waits) waiting_.push_back(std::move(freed));
  else put_back(begin, size);
}

void StreamAllocator::put_back(std::byte* block, int64_t size) noexcept {
  const auto uncached = uncached_.find(block);
  if (uncached == uncached_.end()) return arena_.free(block, size);
  uncached_.erase(uncached);
  // At the end of the process CUDA may be gone already: then the error means nothing.
  if (cudaFreeAsync(block, stream_) != cudaSuccess) (void)cudaGetLastError();
}

bool StreamAllocator::holds(const std::byte* address) const {
  if (arena_.holds(address)) return true;
  auto block = uncached_.upper_bound(address);
  return block != uncached_.begin() && (--block, address < block->first + block->second);
}

void StreamAllocator::add_use(const std::byte* begin, int64_t bytes, cudaStream_t stream) {
  for (const Use& u : uses_) {
    if (u.begin == begin && u.bytes == bytes && u.stream == stream) return;
  }
  uses_.push_back({begin, bytes, stream});
}

std::vector<cudaStream_t> StreamAllocator::users_of(const std::byte* begin, int64_t bytes) const {
  std::vector<cudaStream_t> streams;
  for (const Use& u : uses_) {
    if (u.begin < begin + bytes && begin < u.begin + u.bytes) streams.push_back(u.stream);
  }
  return streams;
}

// The streams that have used a block beside the one that its memory comes from.
std::vector<cudaStream_t> StreamAllocator::end_uses(const std::byte* block, int64_t size) {
  std::vector<cudaStream_t> streams = users_of(block, size);
  if (user_ != stream_) streams.push_back(user_);
  std::ranges::sort(streams);
  streams.erase(std::unique(streams.begin(), streams.end()), streams.end());
  std::erase_if(uses_, [&](const Use& u) { return u.begin >= block && u.begin < block + size; });
  return streams;
}

// The ends of what the streams were given so far. What cannot be ordered is waited for.
void StreamAllocator::record(Waiting& freed) const noexcept {
  std::erase_if(freed.streams, [&](cudaStream_t stream) {
    if (captured(stream)) return false;  // an event would be of the graph
    cudaEvent_t event = nullptr;
    cudaError_t status = memory_.take_event(&event);
    if (status == cudaSuccess) status = cudaEventRecord(event, stream);
    if (status == cudaSuccess) {
      freed.events.push_back(event);
    } else {
      (void)cudaGetLastError();
      (void)cudaDeviceSynchronize();
    }
    return true;
  });
}

bool StreamAllocator::idle(const Waiting& freed) const noexcept {
  const bool fired = std::ranges::all_of(
      freed.events, [](cudaEvent_t event) { return cudaEventQuery(event) == cudaSuccess; });
  if (!fired) (void)cudaGetLastError();  // "not ready" is no error
  return fired && std::ranges::none_of(freed.streams, captured);
}

// After its events on the stream, which need not have fired.
void StreamAllocator::take_back(Waiting& freed) noexcept {
  record(freed);
  for (const cudaEvent_t event : freed.events) {
    if (cudaStreamWaitEvent(stream_, event, 0) != cudaSuccess) {
      (void)cudaGetLastError();
      (void)cudaDeviceSynchronize();
    }
    memory_.give_event(event);
  }
  put_back(freed.block, freed.size);
}

void StreamAllocator::take_back_all() noexcept {
  std::erase_if(waiting_, [&](Waiting& freed) {
    record(freed);
    if (!freed.streams.empty()) return false;
    take_back(freed);
    return true;
  });
}

void StreamAllocator::release() {
  if (held_ || parent_) return;
  take_back_all();
  arena_.release();
  // What the driver is given back by itself comes when the stream gets there.
  if (!caching()) (void)cudaStreamSynchronize(stream_);
}

void StreamAllocator::empty_cache() {
  const std::lock_guard lock(memory_.mutex());
  if (!held_ && !parent_) memory_.release();
}

MemoryStats StreamAllocator::stats() const {
  const std::lock_guard lock(memory_.mutex());
  return memory_.stats();
}

void StreamAllocator::reset_peak() {
  const std::lock_guard lock(memory_.mutex());
  memory_.reset_peak();
}

void StreamAllocator::hold(bool on) noexcept {
  const std::lock_guard lock(memory_.mutex());
  held_ = on;
}

void StreamAllocator::close() noexcept {
  const std::lock_guard lock(memory_.mutex());
  closed_ = true;
}

}  // namespace tessera
