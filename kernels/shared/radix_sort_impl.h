// SPDX-License-Identifier: Apache-2.0
// A stable sort of keys with their places: bytes from the lowest to the highest, skipping those in
// which all keys agree. One thread sorts one row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace tessera {

/// A 32-bit key above its 32-bit place: as plain numbers these sort stably. For fewer than 2^32.
using PackedItem = uint64_t;
inline PackedItem pack_item(uint32_t key, int64_t place) {
  return PackedItem{key} << 32 | static_cast<uint32_t>(place);
}
inline int64_t place_of(PackedItem item) { return static_cast<int64_t>(item & 0xffffffffu); }

/// A 64-bit key and its place.
struct WideItem {
  uint64_t key, place;
  bool operator<(const WideItem& o) const { return key != o.key ? key < o.key : place < o.place; }
};
inline int64_t place_of(const WideItem& item) { return static_cast<int64_t>(item.place); }

/// Sorts `n` items by key bits [8 * first, 8 * bytes), equal keys by place, in which order they
/// must stand. Uses `other` of n items as well; gives the one of the two that holds the result.
template <class Item>
Item* radix_sort(Item* items, Item* other, int64_t n, int bytes, int first = 0) {
  constexpr int64_t kFew = 96;  // fewer cost less to compare than to count
  if (n < kFew) {
    std::sort(items, items + n);
    return items;
  }
  const auto byte_of = [](const Item& item, int byte) {
    if constexpr (sizeof(Item) == 8) return item >> (32 + 8 * byte) & 0xff;
    else return item.key >> (8 * byte) & 0xff;
  };
  // Of small counts, since short rows are many and each clears them.
  using Count = std::conditional_t<sizeof(Item) == 8, uint32_t, uint64_t>;
  Count counts[sizeof(Item) == 8 ? 4 : 8][256];
  std::memset(counts, 0, static_cast<size_t>(bytes) * sizeof(counts[0]));
  for (int64_t i = 0; i < n; ++i) {
    for (int b = first; b < bytes; ++b) ++counts[b][byte_of(items[i], b)];
  }
  for (int b = first; b < bytes; ++b) {
    Count* next = counts[b];
    if (next[byte_of(items[0], b)] == static_cast<Count>(n)) continue;
    Count at = 0;
    for (int v = 0; v < 256; ++v) at += std::exchange(next[v], at);
    for (int64_t i = 0; i < n; ++i) other[next[byte_of(items[i], b)]++] = items[i];
    std::swap(items, other);
  }
  return items;
}

}  // namespace tessera
