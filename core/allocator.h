// SPDX-License-Identifier: Apache-2.0
// Allocators of tensor bytes. The CPU one caches: blocks are 64-byte aligned, small ones by size
// class in free lists of the owning rank, large ones (huge pages) by best fit. A block may be freed
// on any thread; it returns to the allocator that made it, and that allocator lives as long as any
// of its blocks.
#pragma once

#include "tessera/core/device.h"
#include "tessera/core/ref.h"

#include <cstdint>

namespace tessera {

/// Bytes in use now, at most so far, and kept for reuse.
struct MemoryStats {
  int64_t live = 0, peak = 0, cached = 0;
};

class TESSERA_API Allocator : public RefCounted<Allocator> {
 public:
  virtual ~Allocator() = default;
  static void* operator new(size_t bytes) { return ::operator new(bytes); }
  static void operator delete(void* p) noexcept { ::operator delete(p); }
  /// At least `bytes` bytes (> 0); throws StorageError when the device has no more.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void free(void* block, int64_t bytes) noexcept = 0;
  /// Gives cached blocks back to the system.
  virtual void empty_cache() = 0;
  [[nodiscard]] virtual MemoryStats stats() const = 0;
  virtual void reset_peak() = 0;
};

/// The caching CPU allocator of one rank.
TESSERA_API Ref<Allocator> make_cpu_allocator();

}  // namespace tessera
