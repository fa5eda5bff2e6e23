// SPDX-License-Identifier: Apache-2.0
// Scans along a dim on CUDA. Along the last dim a block scans a row, a tile of its threads at a
// time; along another a thread takes a column, neighbours reading neighbours. S: type Acc, static
// start() and join(first, then), of(at, i) of the element `at`, the i-th of its line, and write(at,
// i, acc).
#pragma once

#include "tessera/kernels/shared/launch.cuh"

#include <type_traits>

namespace tessera::scan {

/// What floats and integers are accumulated in, as on the CPU.
template <class T> using wide_t = std::conditional_t<is_floating(dtype_of<T>), double, uint64_t>;

template <class T> __device__ wide_t<T> widen(T x) {
  return static_cast<wide_t<T>>(static_cast<compute_t<T>>(x));
}
template <class T> __device__ T narrow_to(wide_t<T> x) {
  return static_cast<T>(static_cast<compute_t<T>>(x));
}

template <class S> __global__ void scan_rows(S s, int64_t rows, int64_t n, bool reverse) {
  using Acc = typename S::Acc;
  auto& shared = block_shared<Acc[kThreads]>();
  const int t = threadIdx.x;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    Acc carry = S::start();
    for (int64_t tile = 0; tile < n; tile += kThreads) {
      const int64_t k = tile + t, i = reverse ? n - 1 - k : k;
      __syncthreads();  // the last tile's readers are done
      shared[t] = k < n ? s.of(row * n + i, i) : S::start();
      __syncthreads();
      for (int step = 1; step < kThreads; step *= 2) {
        const Acc before = t >= step ? shared[t - step] : S::start();
        __syncthreads();
        shared[t] = S::join(before, shared[t]);
        __syncthreads();
      }
      if (k < n) s.write(row * n + i, i, S::join(carry, shared[t]));
      carry = S::join(carry, shared[kThreads - 1]);
    }
  }
}

template <class S>
__global__ void scan_columns(S s, int64_t columns, int64_t n, int64_t inner, bool reverse) {
  for (int64_t c = first_item(); c < columns; c += item_step()) {
    const int64_t first = c / inner * n * inner + c % inner;
    typename S::Acc acc = S::start();
    for (int64_t k = 0; k < n; ++k) {
      const int64_t i = reverse ? n - 1 - k : k, at = first + i * inner;
      acc = S::join(acc, s.of(at, i));
      s.write(at, i, acc);
    }
  }
}

template <class S> void run(const S& s, const DimView& v, bool reverse, Stream stream) {
  const int64_t columns = v.outer * v.inner;
  if (columns * v.n == 0) return;
  if (v.inner == 1)
    launch(scan_rows<S>, blocks_for(columns, 1), kThreads, 0, stream, s, columns, v.n, reverse);
  else
    launch(scan_columns<S>, blocks_for(columns), kThreads, 0, stream, s, columns, v.n, v.inner,
           reverse);
}

}  // namespace tessera::scan
