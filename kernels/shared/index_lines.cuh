// SPDX-License-Identifier: Apache-2.0
// Lines along a dim of a tensor that an index points into, on the device: the twin of
// index_lines_impl.h. A thread follows one line, neighbours side by side, so that what it writes
// needs no atomics.
#pragma once

#include "tessera/kernels/shared/loop_nest.cuh"

namespace tessera {

struct DeviceLines {
  DeviceNest<3> nest;  // of the dims but the index's: y, index, other
  int64_t count, n, m;
  int64_t step[3];

  DeviceLines(const Tensor& y, const Tensor& index, const Tensor& other, int dim)
      : count(index.shape().without(dim).numel()),
        n(y.shape()[dim]),
        m(index.shape()[dim]),
        step{y.strides()[dim], index.strides()[dim], other.strides()[dim]} {
    const auto starts = [&](const Tensor& x) {
      return alias(x, index.shape().without(dim), x.strides().without(dim), x.offset());
    };
    const Tensor a = starts(y), b = starts(index), c = starts(other);
    nest = DeviceNest<3>(LoopNest<3>(b.shape(), {&a, &b, &c}));
  }
};

/// f(offset of the element of y that the index points at, -1 where it is outside; offset in the
/// other) for each index of each line in their order, or with kBackwards from the last to the
/// first.
template <bool kBackwards, class F>
__device__ void each_indexed(const DeviceLines& lines, const int64_t* index, F f) {
  for (int64_t line = first_item(); line < lines.count; line += item_step()) {
    int64_t at[3];
    lines.nest.offsets(line, at);
    for (int64_t j = 0; j < lines.m; ++j) {
      const int64_t k = kBackwards ? lines.m - 1 - j : j;
      const int64_t place = index[at[1] + k * lines.step[1]];
      const bool inside = place >= 0 && place < lines.n;
      f(inside ? at[0] + place * lines.step[0] : -1, at[2] + k * lines.step[2]);
    }
  }
}

}  // namespace tessera
