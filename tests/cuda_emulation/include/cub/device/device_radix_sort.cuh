// SPDX-License-Identifier: Apache-2.0
// CUB's sort of keys with values by a stable sort. The first call, without scratch memory, says how
// many bytes the second needs; these are overwritten. As CUB does, a call fails of an error that an
// earlier one left behind.
#pragma once

#include "cuda_runtime.h"

#include <cstring>
#include <numeric>
#include <vector>

namespace cuda_emulation {

/// Sorts [begin, end) by the bits [first_bit, last_bit) of the keys.
template <class Key, class Value>
void sort_pairs(const Key* keys, Key* sorted_keys, const Value* values, Value* sorted_values,
                int64_t begin, int64_t end, int first_bit, int last_bit) {
  static_assert(std::is_unsigned_v<Key>);
  const int width = last_bit - first_bit;
  const Key mask = width >= static_cast<int>(8 * sizeof(Key))
                       ? static_cast<Key>(~Key{0})
                       : static_cast<Key>((Key{1} << width) - 1);
  const auto bits = [&](int64_t i) { return static_cast<Key>(keys[i] >> first_bit) & mask; };
  std::vector<int64_t> order(static_cast<size_t>(end - begin));
  std::iota(order.begin(), order.end(), begin);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return bits(a) < bits(b); });
  for (size_t i = 0; i < order.size(); ++i) {
    sorted_keys[begin + static_cast<int64_t>(i)] = keys[order[i]];
    sorted_values[begin + static_cast<int64_t>(i)] = values[order[i]];
  }
}

/// CUB's protocol of scratch memory around `work`, on a stream.
template <class Work>
cudaError_t with_scratch(void* scratch, size_t& bytes, int64_t items, cudaStream_t stream,
                         Work work) {
  const size_t needed = 1000 + static_cast<size_t>(items) / 8;
  if (!scratch) {
    bytes = needed;
    return cudaSuccess;
  }
  if (bytes < needed) return cudaErrorInvalidValue;
  const cudaError_t status = enqueue(stream, [=] {
    std::memset(scratch, 0xff, needed);
    work();
  });
  return status == cudaSuccess ? cudaPeekAtLastError() : status;
}

}  // namespace cuda_emulation

namespace cub {

struct DeviceRadixSort {
  template <class Key, class Value, class Items>
  static cudaError_t SortPairs(void* scratch, size_t& bytes, const Key* keys, Key* sorted_keys,
                               const Value* values, Value* sorted_values, Items items,
                               int first_bit, int last_bit, cudaStream_t stream) {
    return cuda_emulation::with_scratch(scratch, bytes, items, stream, [=] {
      cuda_emulation::sort_pairs(keys, sorted_keys, values, sorted_values, 0, items, first_bit,
                                 last_bit);
    });
  }
};

}  // namespace cub
