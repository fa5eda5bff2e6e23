// SPDX-License-Identifier: Apache-2.0
// An allocator of memory that another owner gives and takes back: a caller's bytes, or a part of a
// storage. Released bytes stay where they are. Who owns them is up to the class derived from it.
#pragma once

#include "tessera/core/allocator.h"

namespace tessera::detail {

class Borrowed : public Allocator {
 public:
  void* allocate(int64_t) final { return data_; }
  void free(void*, int64_t) noexcept final {}
  void empty_cache() final {}
  [[nodiscard]] MemoryStats stats() const final { return {}; }
  void reset_peak() final {}

 protected:
  explicit Borrowed(void* data) : data_(data) {}
  [[nodiscard]] void* data() const { return data_; }

 private:
  void* data_;
};

}  // namespace tessera::detail
