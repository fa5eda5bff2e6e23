// SPDX-License-Identifier: Apache-2.0
// Two orders of the free ranges, by address to join and by size to fit; both cost a logarithm of
// their number. Ranges of two segments are never joined, even where one ends at the other's begin:
// a segment must be able to go back.
#include "tessera/core/arena_impl.h"

#include <algorithm>
#include <iterator>

namespace tessera {
namespace {

// Freed memory below this is kept, whatever is in use.
constexpr int64_t kKept = 64 << 20;
// Small blocks are joined where they hold this part of the memory: joining costs more than to keep
// and reuse them.
constexpr int64_t kJoinedPart = 8;

int64_t whole_units(int64_t bytes) {
  return (bytes + kSegmentUnit - 1) / kSegmentUnit * kSegmentUnit;
}

}  // namespace

std::byte* Arena::allocate(int64_t bytes) {
  if (std::byte* const block = allocate_cached(bytes)) return block;
  const int64_t size = rounded_block(bytes);
  make_room(size);
  if (!grow(size, std::max(size, reserved_) / slack_) && !grow(size, 0)) {
    release();
    if (std::byte* const block = allocate_cached(bytes)) return block;
    if (!grow(size, 0)) return nullptr;
  }
  return used(cut(size), size);
}

std::byte* Arena::allocate_cached(int64_t bytes) {
  const int64_t size = rounded_block(bytes);
  if (size <= kSmallLimit) {
    auto& list = small_[static_cast<size_t>(size_class(bytes))];
    if (!list.empty()) {
      std::byte* const block = list.back();
      list.pop_back();
      kept_small_ -= size;
      return used(block, size);
    }
  }
  std::byte* block = cut(size);
  if (!block && kept_small_ > reserved_ / kJoinedPart) {
    join_small();
    block = cut(size);
  }
  return block ? used(block, size) : nullptr;
}

std::byte* Arena::used(std::byte* block, int64_t size) {
  used_ += size;
  most_used_ = std::max(most_used_, used_);
  return block;
}

void Arena::free(std::byte* block, int64_t bytes) {
  const int64_t size = rounded_block(bytes);
  used_ -= size;
  if (size > kSmallLimit) return join(block, size);
  small_[static_cast<size_t>(size_class(bytes))].push_back(block);
  kept_small_ += size;
}

int64_t Arena::release() {
  join_small();
  const int64_t before = reserved_;
  for (auto it = segments_.begin(); it != segments_.end();)
    it = is_free(*it) ? give_back(it) : std::next(it);
  return before - reserved_;
}

bool Arena::holds(const std::byte* at) const {
  auto segment = segments_.upper_bound(at);
  if (segment == segments_.begin()) return false;
  --segment;
  return std::less<>()(at, segment->first + segment->second);
}

// The smallest range that holds `size` bytes, and of those the first: the far end of the memory is
// used last, so that it need not exist before.
std::byte* Arena::cut(int64_t size) {
  const auto fit = by_size_.lower_bound({size, nullptr});
  if (fit == by_size_.end()) return nullptr;
  const auto [all, begin] = *fit;
  remove_range(ranges_.find(begin));
  if (all > size) add_range(begin + size, all - size);
  return begin;
}

void Arena::join(std::byte* begin, int64_t size) {
  const auto next = ranges_.lower_bound(begin);
  if (next != ranges_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin && !segments_.contains(begin)) {
      begin = before->first;
      size += before->second;
      remove_range(before);
    }
  }
  if (next != ranges_.end() && begin + size == next->first && !segments_.contains(next->first)) {
    size += next->second;
    remove_range(next);
  }
  add_range(begin, size);
}

void Arena::join_small() {
  for (int c = 0; c < kClasses; ++c) {
    auto& list = small_[static_cast<size_t>(c)];
    for (std::byte* block : list) join(block, class_bytes(c));
    list.clear();
  }
  kept_small_ = 0;
}

bool Arena::grow(int64_t size, int64_t slack) {
  const int64_t bytes = whole_units(size + slack);
  std::byte* const segment = source_.obtain(bytes);
  if (!segment) return false;
  segments_.emplace(segment, bytes);
  reserved_ += bytes;
  add_range(segment, bytes);
  return true;
}

// Segments that are free and too small go back when more is kept than was ever in use at once:
// sizes that keep growing must not fill the machine.
void Arena::make_room(int64_t size) {
  const int64_t limit = std::max(most_used_, kKept);
  for (auto it = segments_.begin(); it != segments_.end() && reserved_ - used_ + size > limit;) {
    it = is_free(*it) ? give_back(it) : std::next(it);
  }
}

void Arena::add_range(std::byte* begin, int64_t size) {
  ranges_.emplace(begin, size);
  by_size_.emplace(size, begin);
}

void Arena::remove_range(std::map<std::byte*, int64_t>::iterator range) {
  by_size_.erase({range->second, range->first});
  ranges_.erase(range);
}

bool Arena::is_free(const Segments::value_type& segment) const {
  const auto range = ranges_.find(segment.first);
  return range != ranges_.end() && range->second == segment.second;
}

Arena::Segments::iterator Arena::give_back(Segments::iterator segment) {
  const auto [begin, bytes] = *segment;
  remove_range(ranges_.find(begin));
  reserved_ -= bytes;
  source_.give_back(begin, bytes);
  return segments_.erase(segment);
}

}  // namespace tessera
