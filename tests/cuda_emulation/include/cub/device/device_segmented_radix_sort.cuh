// SPDX-License-Identifier: Apache-2.0
// CUB's sort of each segment of keys with values.
#pragma once

#include "cub/device/device_radix_sort.cuh"

namespace cub {

struct DeviceSegmentedRadixSort {
  template <class Key, class Value, class Offset>
  static cudaError_t SortPairs(void* scratch, size_t& bytes, const Key* keys, Key* sorted_keys,
                               const Value* values, Value* sorted_values, int items, int segments,
                               const Offset* begins, const Offset* ends, int first_bit,
                               int last_bit, cudaStream_t stream) {
    return cuda_emulation::with_scratch(scratch, bytes, items, stream, [=] {
      for (int s = 0; s < segments; ++s) {
        cuda_emulation::sort_pairs(keys, sorted_keys, values, sorted_values, begins[s], ends[s],
                                   first_bit, last_bit);
      }
    });
  }
};

}  // namespace cub
