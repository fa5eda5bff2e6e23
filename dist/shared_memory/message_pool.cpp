// SPDX-License-Identifier: Apache-2.0
#include "tessera/dist/shared_memory/message_pool_impl.h"

#include <algorithm>
#include <cerrno>
#include <sys/mman.h>

namespace tessera {
namespace {
constexpr size_t kPage = 4096;
}  // namespace

MessagePool::MessagePool(std::byte* memory, size_t bytes) : memory_(memory) {
  if (bytes > 0) free_.emplace(0, bytes);
}

std::optional<size_t> MessagePool::take(size_t bytes) {
  const size_t whole = (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
  const auto room =
      std::ranges::find_if(free_, [&](const auto& range) { return range.second >= whole; });
  if (room == free_.end() || !make_pages(room->first + whole)) return {};
  const auto [offset, left] = *room;
  free_.erase(room);
  if (left > whole) free_.emplace(offset + whole, left - whole);
  used_.emplace(offset, whole);
  return offset;
}

void MessagePool::give_back(size_t offset) {
  const auto taken = used_.extract(offset);
  size_t bytes = taken.mapped();
  auto next = free_.upper_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace(offset, bytes);
}

// The system says here that it has no memory; a first write to such a page would end the process.
// Kernels before 5.14 know no such question (EINVAL).
bool MessagePool::make_pages(size_t end) {
  if (end <= made_) return true;
#ifdef MADV_POPULATE_WRITE
  if (madvise(memory_ + made_, end - made_, MADV_POPULATE_WRITE) != 0 && errno != EINVAL)
    return false;
#endif
  made_ = end;
  return true;
}

}  // namespace tessera
