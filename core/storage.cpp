// SPDX-License-Identifier: Apache-2.0
// Bytes come from the allocator when a storage is made or regained, and go back to it. On the meta
// device an allocator counts, and its block is null.
#include "tessera/core/storage.h"

namespace tessera {

Storage::Storage(Ref<Allocator> allocator, int64_t bytes, Device device)
    : allocator_(std::move(allocator)), bytes_(bytes), device_(device) {
  if (bytes_ > 0 && allocator_) data_ = allocator_->allocate(bytes_);
}

Storage::~Storage() {
  if (allocator_ && bytes_ > 0 && !released_) allocator_->free(data_, bytes_);
}

void Storage::release_bytes() noexcept {
  if (allocator_ && bytes_ > 0 && !released_) allocator_->free(data_, bytes_);
  data_ = nullptr;
  released_ = true;
}

void Storage::regain_bytes() {
  if (!released_) return;
  if (bytes_ > 0 && allocator_) data_ = allocator_->allocate(bytes_);
  released_ = false;
}

}  // namespace tessera
