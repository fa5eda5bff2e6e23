// SPDX-License-Identifier: Apache-2.0
// Numbers as unsigned keys that sort as the numbers do: zero of either sign is one key, NaN is
// above all. Read by sort on the CPU and on the device.
#pragma once

#include "tessera/core/dtype.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

namespace tessera {

/// Keys of narrow types are kept in 32 bits, so that two kinds of key serve all dtypes.
template <class T> using order_key_t = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
template <class T> inline constexpr int kOrderKeyBits = 8 * sizeof(T);

template <class T> TESSERA_HD order_key_t<T> order_key(T x, bool descending) {
  using Key = order_key_t<T>;
  constexpr Key kSign = Key{1} << (kOrderKeyBits<T> - 1);
  constexpr Key kLargest = kSign | (kSign - 1);
  Key key;
  if constexpr (is_floating(dtype_of<T>)) {
    using Bits = std::conditional_t<sizeof(T) == 8, uint64_t,
                                    std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
    const auto value = static_cast<compute_t<T>>(x);
    const Key bits = std::bit_cast<Bits>(x);
    if (value != value) key = kLargest;
    else if (value == 0) key = kSign;
    else key = (bits & kSign) ? kLargest & ~bits : bits | kSign;
  } else {
    key = static_cast<Key>(x) ^ kSign;
  }
  return descending ? kLargest & ~key : key;
}

/// The low bits of a key that differ among whole numbers in [0, bound); all, if bound is 0.
template <class T> int order_bits(int64_t bound) {
  if (bound == 0) return kOrderKeyBits<T>;
  return std::clamp(static_cast<int>(std::bit_width(static_cast<uint64_t>(bound - 1))), 1,
                    kOrderKeyBits<T>);
}

}  // namespace tessera
