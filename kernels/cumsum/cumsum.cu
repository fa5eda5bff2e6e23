// SPDX-License-Identifier: Apache-2.0
// CUDA cumsum. Along the last dim a block scans a row, a tile of its threads at a time; along
// another a thread adds up a column, neighbours reading neighbours. Sums are f64, as on the CPU.
#include "tessera/kernels/cumsum/cumsum.h"
#include "tessera/kernels/shared/launch.cuh"

namespace tessera::op {
namespace {

template <class T> using sum_t = std::conditional_t<is_floating(dtype_of<T>), double, uint64_t>;

template <class T> __device__ sum_t<T> widen(T x) {
  return static_cast<sum_t<T>>(static_cast<compute_t<T>>(x));
}
template <class T> __device__ T narrow_to(sum_t<T> x) {
  return static_cast<T>(static_cast<compute_t<T>>(x));
}

template <class T>
__global__ void scan_rows(const T* x, T* y, int64_t rows, int64_t n, bool reverse) {
  __shared__ sum_t<T> sums[kThreads];
  const int t = threadIdx.x;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    sum_t<T> carry{};
    for (int64_t tile = 0; tile < n; tile += kThreads) {
      const int64_t i = tile + t, at = row * n + (reverse ? n - 1 - i : i);
      __syncthreads();  // the last tile's readers are done
      sums[t] = i < n ? widen(x[at]) : sum_t<T>{};
      __syncthreads();
      for (int step = 1; step < kThreads; step *= 2) {
        const sum_t<T> before = t >= step ? sums[t - step] : sum_t<T>{};
        __syncthreads();
        sums[t] += before;
        __syncthreads();
      }
      if (i < n) y[at] = narrow_to<T>(carry + sums[t]);
      carry += sums[kThreads - 1];
    }
  }
}

template <class T>
__global__ void scan_columns(const T* x, T* y, int64_t columns, int64_t n, int64_t inner,
                             bool reverse) {
  for (int64_t c = first_item(); c < columns; c += item_step()) {
    const int64_t first = c / inner * n * inner + c % inner;
    sum_t<T> sum{};
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = first + (reverse ? n - 1 - j : j) * inner;
      sum += widen(x[at]);
      y[at] = narrow_to<T>(sum);
    }
  }
}

}  // namespace

void Cumsum::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  const Tensor x = row_major(in[0], stream);
  const DimView v(x.shape(), dim, name);
  const int64_t columns = v.outer * v.inner;
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    if (v.inner == 1)
      scan_rows<<<blocks_for(columns, 1), kThreads, 0, handle(stream)>>>(
          x.data<T>(), y[0].data<T>(), columns, v.n, reverse);
    else
      scan_columns<<<blocks_for(columns), kThreads, 0, handle(stream)>>>(
          x.data<T>(), y[0].data<T>(), columns, v.n, v.inner, reverse);
  });
  check_launch(name);
}

}  // namespace tessera::op
