// SPDX-License-Identifier: Apache-2.0
// The caching CPU allocator. Small blocks (to 64 KiB) come in classes of an eighth of a power of
// two, so at most 12.5 % is wasted; larger ones are rounded to 4 KiB and reused by best fit. The
// owner works without a lock; frees from other threads wait in a locked list until the owner next
// allocates.
#include "tessera/core/allocator.h"

#include "tessera/core/block_size_impl.h"
#include "tessera/core/error.h"
#include "tessera/core/pool.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <utility>
#include <vector>

namespace tessera {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kCacheFloor = 64 << 20;

class CpuAllocator final : public Allocator {
 public:
  ~CpuAllocator() override {
    drain();
    release_cache();
  }

  void* allocate(int64_t bytes) override {
    if (has_remote_.load(std::memory_order_acquire)) drain();
    const int64_t size = rounded_block(bytes);
    stats_.live += size;
    if (stats_.live > stats_.peak) stats_.peak = stats_.live;
    if (size <= kSmallLimit) {
      auto& list = small_[static_cast<size_t>(size_class(bytes))];
      if (!list.empty()) {
        void* block = list.back();
        list.pop_back();
        cached_small_ -= size;
        stats_.cached -= size;
        return block;
      }
      return fresh(size);
    }
    // A block up to an eighth too large is reused; larger ones would waste more than they save.
    auto it = large_.lower_bound(size);
    if (it != large_.end() && it->first <= size + size / 8) {
      void* block = it->second;
      stats_.cached -= it->first;
      stats_.live += it->first - size;
      actual_[block] = it->first;
      large_.erase(it);
      return block;
    }
    void* block = fresh(size);
    actual_[block] = size;
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
    release_cache();
  }
  [[nodiscard]] MemoryStats stats() const override { return stats_; }
  void reset_peak() override { stats_.peak = stats_.live; }

 private:
  void* fresh(int64_t size) {
    const int64_t alignment = size >= 2 * kHugePage ? kHugePage : kAlignment;
    const auto try_once = [&] {
      return std::aligned_alloc(
          static_cast<size_t>(alignment),
          static_cast<size_t>((size + alignment - 1) / alignment * alignment));
    };
    void* block = try_once();
    if (!block) {  // what the cache holds may be all that is missing
      release_cache();
      block = try_once();
    }
    if (!block) {
      stats_.live -= size;
      fail<StorageError>("allocate", "out of memory: ", size, " bytes asked, ", stats_.live,
                         " in use by this rank; use a smaller batch or sequence");
    }
    if (alignment == kHugePage) ::madvise(block, static_cast<size_t>(size), MADV_HUGEPAGE);
    return block;
  }
  void put_back(void* block, int64_t bytes) {
    int64_t size = rounded_block(bytes);
    // Lengths that keep changing must not fill the machine with blocks that fit no more. What a
    // step frees at once, the next takes again, so no other limit is right.
    const int64_t limit = std::max(stats_.peak, kCacheFloor);
    if (size <= kSmallLimit) {
      stats_.live -= size;
      if (large_.empty() && stats_.cached + size > limit) return std::free(block);
      small_[static_cast<size_t>(size_class(bytes))].push_back(block);
      cached_small_ += size;
    } else {
      auto it = actual_.find(block);
      size = it->second;
      actual_.erase(it);
      stats_.live -= size;
      large_.emplace(size, block);
    }
    stats_.cached += size;
    while (stats_.cached > limit) {
      if (cached_small_ > stats_.cached / 2) {  // else they would leave large ones no room for good
        release_small();
        continue;
      }
      const auto largest = std::prev(large_.end());
      stats_.cached -= largest->first;
      std::free(largest->second);
      large_.erase(largest);
    }
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
  void release_small() {
    for (auto& list : small_) {
      for (void* block : list) std::free(block);
      list.clear();
    }
    stats_.cached -= std::exchange(cached_small_, 0);
  }
  void release_cache() {
    release_small();
    for (auto [size, block] : large_) std::free(block);
    large_.clear();
    stats_.cached = 0;
  }

  const Pool* owner_ = Pool::current_or_null();
  std::array<std::vector<void*>, kClasses> small_;
  int64_t cached_small_ = 0;  // bytes
  std::multimap<int64_t, void*> large_;
  std::map<void*, int64_t>
      actual_;  // size of each large block in use: it may exceed what was asked
  MemoryStats stats_;
  std::mutex remote_mutex_;
  std::atomic<bool> has_remote_{false};
  std::vector<std::pair<void*, int64_t>> remote_;
};

}  // namespace

Ref<Allocator> make_cpu_allocator() { return Ref<Allocator>(new CpuAllocator); }

}  // namespace tessera
