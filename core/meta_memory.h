// SPDX-License-Identifier: Apache-2.0
// Counts what tensors on the meta device would take: a computation that ran there tells how much
// memory it needs, in the sizes of the CPU allocator, without a byte being allocated.
#pragma once

#include "tessera/core/allocator.h"

namespace tessera {

class Context;

/// While one lives, the current Context's tensors on the meta device are counted; those made
/// before or after are not.
class TESSERA_API MetaMemory {
 public:
  MetaMemory();
  ~MetaMemory();
  MetaMemory(const MetaMemory&) = delete;
  MetaMemory& operator=(const MetaMemory&) = delete;

  /// Bytes alive, and at most so far.
  [[nodiscard]] MemoryStats stats() const { return counter_->stats(); }
  void reset_peak() { counter_->reset_peak(); }

 private:
  Ref<Allocator> counter_, outer_;
};

namespace detail {
/// The counter of tensors on the meta device, or null.
Ref<Allocator> meta_counter();
}  // namespace detail

}  // namespace tessera
