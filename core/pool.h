// SPDX-License-Identifier: Apache-2.0
// Memory of small objects: free lists of one rank, so that an op call needs no malloc. The rank's
// `Context` is a Pool; the thread's pointer to it is declared here, because all allocations use it.
#pragma once

#include "tessera/core/api.h"

#include <array>
#include <cstddef>

namespace tessera {

/// Memory for small objects from the calling rank's free lists (plain new and delete on threads
/// without a Context). Blocks may be freed on any thread.
TESSERA_API void* pool_allocate(size_t bytes);
TESSERA_API void pool_free(void* block, size_t bytes) noexcept;

/// The free lists of one rank; the thread's current ones while they live. Base of Context alone.
class TESSERA_API Pool {
 public:
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  /// Which rank the calling thread is; null on a thread without one.
  static const Pool* current_or_null() noexcept { return current_; }

 protected:
  Pool() noexcept : previous_(current_) { current_ = this; }
  ~Pool();
  static Pool* around(const Pool& pool) noexcept { return pool.previous_; }
  static thread_local Pool* current_ TESSERA_INITIAL_EXEC;

 private:
  friend void* pool_allocate(size_t);
  friend void pool_free(void*, size_t) noexcept;
  static constexpr int kClasses = 16;  // multiples of 64 bytes
  struct FreeBlock {
    FreeBlock* next;
  };
  Pool* previous_;
  std::array<FreeBlock*, kClasses> free_{};
};

}  // namespace tessera
