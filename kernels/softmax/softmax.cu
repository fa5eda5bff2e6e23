// SPDX-License-Identifier: Apache-2.0
// CUDA softmax, log_softmax and their gradients: one pair of kernels, told by a policy what a value
// and a slope are. Along the last dim a block takes a row; along another dim a thread takes a
// column, so that neighbouring threads read neighbouring elements.
#include "tessera/kernels/shared/block_reduce.cuh"
#include "tessera/kernels/shared/launch.cuh"
#include "tessera/kernels/softmax/softmax.h"
#include "tessera/kernels/vector_math.h"

namespace tessera::op {
namespace {

// What is done with the sum of exp(x - maximum), and with one element; backward, what is summed
// over y and dy, and what becomes of the sum.
struct Plain {
  template <class C> __device__ static C finish(C sum) { return sum; }
  template <class C> __device__ static C value(C below, C sum) { return vmath::exp(below) / sum; }
  template <class C> __device__ static C gather(C y, C dy, C dot) { return vmath::fma(y, dy, dot); }
  template <class C> __device__ static C slope(C y, C dy, C dot) { return y * (dy - dot); }
};
struct Logarithm {
  template <class C> __device__ static C finish(C sum) { return vmath::log(sum); }
  template <class C> __device__ static C value(C below, C shift) { return below - shift; }
  template <class C> __device__ static C gather(C, C dy, C total) { return total + dy; }
  template <class C> __device__ static C slope(C y, C dy, C total) {
    return dy - vmath::exp(y) * total;
  }
};

template <class P, class T>
__global__ void forward_rows(const T* x, T* y, int64_t rows, int64_t n) {
  using C = compute_t<T>;
  auto& shared = block_shared<C[32]>();
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* in = x + row * n;
    C top = minus_infinity<C>(), sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) top = MaxOf{}(top, static_cast<C>(in[i]));
    top = block_reduce(top, MaxOf{}, shared);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
      sum += vmath::exp(static_cast<C>(in[i]) - top);
    sum = P::finish(block_reduce(sum, SumOf{}, shared));
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
      y[row * n + i] = static_cast<T>(P::value(static_cast<C>(in[i]) - top, sum));
  }
}

template <class P, class T>
__global__ void forward_columns(const T* x, T* y, int64_t columns, int64_t n, int64_t inner) {
  using C = compute_t<T>;
  for (int64_t c = first_item(); c < columns; c += item_step()) {
    const int64_t base = c / inner * n * inner + c % inner;
    C top = minus_infinity<C>(), sum = 0;
    for (int64_t i = 0; i < n; ++i) top = MaxOf{}(top, static_cast<C>(x[base + i * inner]));
    for (int64_t i = 0; i < n; ++i) sum += vmath::exp(static_cast<C>(x[base + i * inner]) - top);
    sum = P::finish(sum);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = base + i * inner;
      y[at] = static_cast<T>(P::value(static_cast<C>(x[at]) - top, sum));
    }
  }
}

template <class P, class T>
__global__ void backward_rows(const T* y, const T* dy, T* dx, int64_t rows, int64_t n) {
  using C = compute_t<T>;
  auto& shared = block_shared<C[32]>();
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    C total = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
      total = P::gather(static_cast<C>(y[row * n + i]), static_cast<C>(dy[row * n + i]), total);
    total = block_reduce(total, SumOf{}, shared);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      const int64_t at = row * n + i;
      dx[at] = static_cast<T>(P::slope(static_cast<C>(y[at]), static_cast<C>(dy[at]), total));
    }
  }
}

template <class P, class T>
__global__ void backward_columns(const T* y, const T* dy, T* dx, int64_t columns, int64_t n,
                                 int64_t inner) {
  using C = compute_t<T>;
  for (int64_t c = first_item(); c < columns; c += item_step()) {
    const int64_t base = c / inner * n * inner + c % inner;
    C total = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = base + i * inner;
      total = P::gather(static_cast<C>(y[at]), static_cast<C>(dy[at]), total);
    }
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = base + i * inner;
      dx[at] = static_cast<T>(P::slope(static_cast<C>(y[at]), static_cast<C>(dy[at]), total));
    }
  }
}

template <class P, class Op> void forward(const Op& op, Tensors in, Outputs y, Stream stream) {
  if (y[0].numel() == 0) return;
  const Tensor x = row_major(in[0], stream);
  const DimView v(x.shape(), op.dim, Op::name);
  dispatch<Op::dtypes>(x.dtype(), [&]<class T>() {
    if (v.inner == 1) {
      launch(forward_rows<P, T>, blocks_for(v.outer, 1), threads_for(v.n), 0, stream,
             x.device_data<T>(), y[0].device_data<T>(), v.outer, v.n);
    } else {
      const int64_t columns = v.outer * v.inner;
      launch(forward_columns<P, T>, blocks_for(columns), kThreads, 0, stream, x.device_data<T>(),
             y[0].device_data<T>(), columns, v.n, v.inner);
    }
  });
}

template <class P, class Op> void backward(const Op& op, Tensors in, Outputs dx, Stream stream) {
  if (dx[0].numel() == 0) return;
  const Tensor y = row_major(in[0], stream), dy = row_major(in[1], stream);
  const DimView v(y.shape(), op.dim, Op::name);
  dispatch<Op::dtypes>(y.dtype(), [&]<class T>() {
    if (v.inner == 1) {
      launch(backward_rows<P, T>, blocks_for(v.outer, 1), threads_for(v.n), 0, stream,
             y.device_data<T>(), dy.device_data<T>(), dx[0].device_data<T>(), v.outer, v.n);
    } else {
      const int64_t columns = v.outer * v.inner;
      launch(backward_columns<P, T>, blocks_for(columns), kThreads, 0, stream, y.device_data<T>(),
             dy.device_data<T>(), dx[0].device_data<T>(), columns, v.n, v.inner);
    }
  });
}

}  // namespace

void Softmax::cuda(Tensors in, Outputs y, Stream stream) const {
  forward<Plain>(*this, in, y, stream);
}
void SoftmaxBackward::cuda(Tensors in, Outputs dx, Stream stream) const {
  backward<Plain>(*this, in, dx, stream);
}
void LogSoftmax::cuda(Tensors in, Outputs y, Stream stream) const {
  forward<Logarithm>(*this, in, y, stream);
}
void LogSoftmaxBackward::cuda(Tensors in, Outputs dx, Stream stream) const {
  backward<Logarithm>(*this, in, dx, stream);
}

}  // namespace tessera::op
