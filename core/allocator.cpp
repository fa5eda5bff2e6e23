// SPDX-License-Identifier: Apache-2.0
// The caching CPU allocator: an arena whose segments are mapped memory. The owner works without a
// lock; frees from other threads wait in a locked list until the owner next allocates. The system
// gives a mapped page when it is first touched, so the slack of a segment takes no memory before it
// is used, and may be large.
#include "tessera/core/allocator.h"

#include "tessera/core/arena_impl.h"
#include "tessera/core/message.h"
#include "tessera/core/out_of_memory.h"
#include "tessera/core/pool.h"

#include <atomic>
#include <bit>
#include <mutex>
#include <sys/mman.h>
#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace tessera {
namespace {

constexpr int64_t kSlack = 2;

// With the address sanitizer, free memory is poisoned, and so is a gap after each block.
#ifdef __SANITIZE_ADDRESS__
constexpr int64_t kGap = 64;
void poison(const void* p, int64_t bytes) {
  __asan_poison_memory_region(p, static_cast<size_t>(bytes));
}
void unpoison(const void* p, int64_t bytes) {
  __asan_unpoison_memory_region(p, static_cast<size_t>(bytes));
}
#else
constexpr int64_t kGap = 0;
void poison(const void*, int64_t) {}
void unpoison(const void*, int64_t) {}
#endif

class MappedMemory final : public SegmentSource {
 public:
  // Mapped with a unit more, whose ends go back: a huge page lies at a multiple of its size.
  std::byte* obtain(int64_t bytes) override {
    const int64_t all = bytes + kSegmentUnit;
    void* const mapped = ::mmap(nullptr, static_cast<size_t>(all), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    auto* const first = static_cast<std::byte*>(mapped);
    const auto beyond = static_cast<int64_t>(std::bit_cast<uintptr_t>(first) % kSegmentUnit);
    const int64_t before = (kSegmentUnit - beyond) % kSegmentUnit, after = kSegmentUnit - before;
    std::byte* const segment = first + before;
    if (before > 0) ::munmap(first, static_cast<size_t>(before));
    if (after > 0) ::munmap(segment + bytes, static_cast<size_t>(after));
    // A rank with little memory must not hold two huge pages for it.
    if (bytes >= 2 * kSegmentUnit) ::madvise(segment, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    poison(segment, bytes);
    return segment;
  }
  void give_back(std::byte* segment, int64_t bytes) noexcept override {
    unpoison(segment, bytes);
    ::munmap(segment, static_cast<size_t>(bytes));
  }
};

class CpuAllocator final : public Allocator {
 public:
  ~CpuAllocator() override { drain(); }

  void* allocate(int64_t bytes) override {
    if (has_remote_.load(std::memory_order_acquire)) drain();
    const int64_t size = rounded_block(bytes);
    std::byte* const block = arena_.allocate(bytes + kGap);
    if (!block) {
      fail<OutOfMemory>("allocate", "out of memory: ", counted(size, "byte"), " asked, ", live_,
                        " in use by this rank; use a smaller batch or sequence");
    }
    live_ += size;
    if (live_ > peak_) peak_ = live_;
    unpoison(block, size);
    return block;
  }

  void free(void* block, int64_t bytes) noexcept override {
    if (owner_ && owner_ == Pool::current_or_null()) {
      put_back(block, bytes);
    } else {
      const std::lock_guard lock(remote_mutex_);
      remote_.emplace_back(block, bytes);
      has_remote_.store(true, std::memory_order_release);
    }
  }

  void empty_cache() override {
    drain();
    arena_.release();
  }
  [[nodiscard]] MemoryStats stats() const override {
    return {.live = live_, .peak = peak_, .cached = arena_.reserved() - live_};
  }
  void reset_peak() override { peak_ = live_; }

 private:
  void put_back(void* block, int64_t bytes) {
    const int64_t size = rounded_block(bytes);
    live_ -= size;
    poison(block, size);
    arena_.free(static_cast<std::byte*>(block), bytes + kGap);
  }
  void drain() {
    std::vector<std::pair<void*, int64_t>> blocks;
    {
      const std::lock_guard lock(remote_mutex_);
      blocks.swap(remote_);
      has_remote_.store(false, std::memory_order_release);
    }
    for (auto [block, bytes] : blocks) put_back(block, bytes);
  }

  const Pool* owner_ = Pool::current_or_null();
  MappedMemory memory_;
  Arena arena_{memory_, kSlack};
  int64_t live_ = 0, peak_ = 0;
  std::mutex remote_mutex_;
  std::atomic<bool> has_remote_{false};
  std::vector<std::pair<void*, int64_t>> remote_;
};

}  // namespace

Ref<Allocator> make_cpu_allocator() { return Ref<Allocator>(new CpuAllocator); }

}  // namespace tessera
