// SPDX-License-Identifier: Apache-2.0
// The counter is an allocator whose blocks are null. Tensors keep it alive, and may be freed on any
// thread.
#include "tessera/core/meta_memory.h"

#include "tessera/core/block_size_impl.h"
#include "tessera/core/context.h"

#include <atomic>

namespace tessera {
namespace {

class Counter final : public Allocator {
 public:
  void* allocate(int64_t bytes) override {
    const int64_t live = live_ += rounded_block(bytes);
    if (live > peak_) peak_ = live;
    return nullptr;
  }
  void free(void*, int64_t bytes) noexcept override { live_ -= rounded_block(bytes); }
  void empty_cache() override {}
  [[nodiscard]] MemoryStats stats() const override { return {.live = live_, .peak = peak_}; }
  void reset_peak() override { peak_ = live_; }

 private:
  std::atomic<int64_t> live_{0};
  int64_t peak_ = 0;  // of the thread that allocates
};

struct Slot {
  Ref<Allocator> counter;
};

}  // namespace

MetaMemory::MetaMemory() : counter_(new Counter) {
  outer_ = std::exchange(Context::current().state<Slot>().counter, counter_);
}

MetaMemory::~MetaMemory() { Context::current().state<Slot>().counter = outer_; }

Ref<Allocator> detail::meta_counter() {
  Context* const context = Context::current_or_null();
  return context ? context->state<Slot>().counter : Ref<Allocator>();
}

}  // namespace tessera
