// SPDX-License-Identifier: Apache-2.0
// The sizes of the CPU allocator's blocks.
#pragma once

#include <bit>
#include <cstdint>

namespace tessera {

constexpr int64_t kSmallLimit = 64 << 10;  ///< larger blocks are multiples of 4 KiB

/// Classes of 64, 128, ... 1024 bytes, then eight per power of two.
inline int size_class(int64_t bytes) {
  if (bytes <= 1024) return static_cast<int>((bytes + 63) / 64) - 1;
  const int power = 63 - std::countl_zero(static_cast<uint64_t>(bytes - 1));
  const int eighth = static_cast<int>((bytes - 1) >> (power - 3)) & 7;
  return 16 + (power - 10) * 8 + eighth;
}
inline int64_t class_bytes(int c) {
  if (c < 16) return (c + 1) * 64;
  const int power = 10 + (c - 16) / 8, eighth = (c - 16) % 8;
  return (int64_t{1} << power) + (int64_t{eighth} + 1) * (int64_t{1} << (power - 3));
}
constexpr int kClasses = 16 + 6 * 8;

/// The size of the block that holds `bytes` (> 0).
inline int64_t rounded_block(int64_t bytes) {
  return bytes <= kSmallLimit ? class_bytes(size_class(bytes)) : (bytes + 4095) / 4096 * 4096;
}

}  // namespace tessera
