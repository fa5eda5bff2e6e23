// SPDX-License-Identifier: Apache-2.0
// CUDA log_softmax and its gradient. A block takes a row along the last dim; along another dim a
// thread takes a column, as in softmax.
#include "tessera/kernels/block_reduce.cuh"
#include "tessera/kernels/launch.cuh"
#include "tessera/kernels/softmax/softmax.h"
#include "tessera/kernels/vector_math.h"

namespace tessera::op {
namespace {

template <class T> __global__ void log_softmax_rows(const T* x, T* y, int64_t rows, int64_t n) {
  using C = compute_t<T>;
  __shared__ C shared[32];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* in = x + row * n;
    C top = minus_infinity<C>(), sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) top = MaxOf{}(top, static_cast<C>(in[i]));
    top = block_reduce(top, MaxOf{}, shared);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
      sum += vmath::exp(static_cast<C>(in[i]) - top);
    const C shift = vmath::log(block_reduce(sum, SumOf{}, shared));
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
      y[row * n + i] = static_cast<T>(static_cast<C>(in[i]) - top - shift);
  }
}

template <class T>
__global__ void log_softmax_columns(const T* x, T* y, int64_t columns, int64_t n, int64_t inner) {
  using C = compute_t<T>;
  for (int64_t c = first_item(); c < columns; c += item_step()) {
    const int64_t base = c / inner * n * inner + c % inner;
    C top = minus_infinity<C>(), sum = 0;
    for (int64_t i = 0; i < n; ++i) top = MaxOf{}(top, static_cast<C>(x[base + i * inner]));
    for (int64_t i = 0; i < n; ++i) sum += vmath::exp(static_cast<C>(x[base + i * inner]) - top);
    const C shift = vmath::log(sum);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = base + i * inner;
      y[at] = static_cast<T>(static_cast<C>(x[at]) - top - shift);
    }
  }
}

template <class T>
__global__ void log_backward_rows(const T* y, const T* dy, T* dx, int64_t rows, int64_t n) {
  using C = compute_t<T>;
  __shared__ C shared[32];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    C total = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) total += static_cast<C>(dy[row * n + i]);
    total = block_reduce(total, SumOf{}, shared);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      const int64_t at = row * n + i;
      dx[at] = static_cast<T>(static_cast<C>(dy[at]) - vmath::exp(static_cast<C>(y[at])) * total);
    }
  }
}

template <class T>
__global__ void log_backward_columns(const T* y, const T* dy, T* dx, int64_t columns, int64_t n,
                                     int64_t inner) {
  using C = compute_t<T>;
  for (int64_t c = first_item(); c < columns; c += item_step()) {
    const int64_t base = c / inner * n * inner + c % inner;
    C total = 0;
    for (int64_t i = 0; i < n; ++i) total += static_cast<C>(dy[base + i * inner]);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = base + i * inner;
      dx[at] = static_cast<T>(static_cast<C>(dy[at]) - vmath::exp(static_cast<C>(y[at])) * total);
    }
  }
}

}  // namespace

void LogSoftmax::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  const Tensor x = row_major(in[0], stream);
  const DimView v(x.shape(), dim, name);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    if (v.inner == 1) {
      log_softmax_rows<<<blocks_for(v.outer, 1), threads_for(v.n), 0, handle(stream)>>>(
          x.data<T>(), y[0].data<T>(), v.outer, v.n);
    } else {
      const int64_t columns = v.outer * v.inner;
      log_softmax_columns<<<blocks_for(columns), kThreads, 0, handle(stream)>>>(
          x.data<T>(), y[0].data<T>(), columns, v.n, v.inner);
    }
  });
  check_launch(name);
}

void LogSoftmaxBackward::cuda(Tensors in, Outputs dx, Stream stream) const {
  if (dx[0].numel() == 0) return;
  const Tensor y = row_major(in[0], stream), dy = row_major(in[1], stream);
  const DimView v(y.shape(), dim, name);
  dispatch<dtypes>(y.dtype(), [&]<class T>() {
    if (v.inner == 1) {
      log_backward_rows<<<blocks_for(v.outer, 1), threads_for(v.n), 0, handle(stream)>>>(
          y.data<T>(), dy.data<T>(), dx[0].data<T>(), v.outer, v.n);
    } else {
      const int64_t columns = v.outer * v.inner;
      log_backward_columns<<<blocks_for(columns), kThreads, 0, handle(stream)>>>(
          y.data<T>(), dy.data<T>(), dx[0].data<T>(), columns, v.n, v.inner);
    }
  });
  check_launch(name);
}

}  // namespace tessera::op
