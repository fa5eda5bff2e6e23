// SPDX-License-Identifier: Apache-2.0
// Index maths of strided operands on the device: element number -> offset of each of N operands
// over a common shape. The rank is a run-time loop, so that one kernel serves every layout.
#pragma once

#include "tessera/kernels/shared/launch.cuh"
#include "tessera/kernels/shared/loop_nest_impl.h"

namespace tessera {

template <int N> struct DeviceNest {
  int rank = 1;
  bool narrow = true;  // 32-bit division is several times faster than 64-bit
  int64_t sizes[kMaxRank] = {1};
  int64_t strides[N][kMaxRank] = {};

  DeviceNest() = default;
  explicit DeviceNest(const LoopNest<N>& nest)
      : rank(nest.shape.rank()), narrow(nest.shape.numel() < (int64_t{1} << 31)) {
    for (int d = 0; d < rank; ++d) {
      sizes[d] = nest.shape[d];
      for (int o = 0; o < N; ++o) strides[o][d] = nest.strides[o][d];
    }
  }

  __device__ void offsets(int64_t i, int64_t (&at)[N]) const {
    for (int o = 0; o < N; ++o) at[o] = 0;
    for (int d = rank - 1; d > 0; --d) {
      const int64_t rest =
          narrow ? static_cast<uint32_t>(i) / static_cast<uint32_t>(sizes[d]) : i / sizes[d];
      const int64_t place = i - rest * sizes[d];
      for (int o = 0; o < N; ++o) at[o] += place * strides[o][d];
      i = rest;
    }
    for (int o = 0; o < N; ++o) at[o] += i * strides[o][0];
  }
};

}  // namespace tessera
