// SPDX-License-Identifier: Apache-2.0
// Free lists by size class, without a lock: a block joins the list of the rank that frees it.
#include "tessera/core/pool.h"

#include <new>

namespace tessera {

constinit thread_local Pool* Pool::current_ = nullptr;

namespace {
constexpr size_t kStep = 64;
}

void* pool_allocate(size_t bytes) {
  const size_t c = (bytes - 1) / kStep;
  if (c >= Pool::kClasses) return ::operator new(bytes);
  if (Pool* pool = Pool::current_; pool && pool->free_[c]) {
    Pool::FreeBlock* block = pool->free_[c];
    pool->free_[c] = block->next;
    return block;
  }
  return ::operator new((c + 1) * kStep);
}

void pool_free(void* block, size_t bytes) noexcept {
  const size_t c = (bytes - 1) / kStep;
  Pool* pool = Pool::current_;
  if (c >= Pool::kClasses || !pool) {
    ::operator delete(block);
    return;
  }
  auto* free = static_cast<Pool::FreeBlock*>(block);
  free->next = pool->free_[c];
  pool->free_[c] = free;
}

Pool::~Pool() {
  for (FreeBlock*& list : free_) {
    while (list) {
      FreeBlock* next = list->next;
      ::operator delete(list);
      list = next;
    }
  }
  // Contexts may end in any order: this one leaves the chain, wherever it stands.
  for (Pool** link = &current_; *link; link = &(*link)->previous_) {
    if (*link == this) {
      *link = previous_;
      break;
    }
  }
}

}  // namespace tessera
