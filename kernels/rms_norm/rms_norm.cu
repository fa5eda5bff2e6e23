// SPDX-License-Identifier: Apache-2.0
// CUDA rms_norm: a block takes a row. The weight's gradient is summed over chunks of rows, then
// over the chunks in order: no atomics, the same bits on every run.
#include "tessera/kernels/rms_norm/rms_norm.h"
#include "tessera/kernels/shared/block_reduce.cuh"
#include "tessera/kernels/shared/launch.cuh"
#include "tessera/kernels/shared/weight_chunks.cuh"
#include "tessera/kernels/vector_math.h"

namespace tessera::op {
namespace {

// A weight that is not given is 1.
template <class T> __device__ compute_t<T> weight_at(const T* weight, int64_t i) {
  return weight ? static_cast<compute_t<T>>(weight[i]) : compute_t<T>(1);
}

// With a residual, its sum with x, rounded, is written to `sum` and is what is normalised.
template <class T>
__global__ void forward_kernel(const T* x, const T* residual, const T* weight, T* y, T* sum,
                               compute_t<T>* rstd, int64_t rows, int64_t d, compute_t<T> eps) {
  using C = compute_t<T>;
  auto& shared = block_shared<C[32]>();
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    C squares = 0;
    for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
      const int64_t at = row * d + i;
      C v = static_cast<C>(x[at]);
      if (residual) {
        sum[at] = static_cast<T>(v + static_cast<C>(residual[at]));
        v = static_cast<C>(sum[at]);
      }
      squares = vmath::fma(v, v, squares);
    }
    squares = block_reduce(squares, SumOf{}, shared);
    const C r = C(1) / std::sqrt(squares / static_cast<C>(d) + eps);
    if (threadIdx.x == 0) rstd[row] = r;
    const T* from = residual ? sum : x;  // each thread reads what it wrote itself
    for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
      y[row * d + i] = static_cast<T>(static_cast<C>(from[row * d + i]) * r * weight_at(weight, i));
    }
  }
}

// dx = r (w dy - x r^2 mean(w dy x)) with r = 1/rms, and `more` where that is given.
template <class T>
__global__ void input_gradient(const T* x, const T* weight, const compute_t<T>* rstd, const T* dy,
                               const T* more, T* dx, int64_t rows, int64_t d) {
  using C = compute_t<T>;
  auto& shared = block_shared<C[32]>();
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    C dot = 0;
    for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
      const int64_t at = row * d + i;
      dot = vmath::fma(weight_at(weight, i) * static_cast<C>(dy[at]), static_cast<C>(x[at]), dot);
    }
    dot = block_reduce(dot, SumOf{}, shared);
    const C r = rstd[row], pull = dot * r * r / static_cast<C>(d);
    for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
      const int64_t at = row * d + i;
      const C own =
          r * (weight_at(weight, i) * static_cast<C>(dy[at]) - static_cast<C>(x[at]) * pull);
      dx[at] = static_cast<T>(more ? own + static_cast<C>(more[at]) : own);
    }
  }
}

// partial[chunk][i] = sum over the chunk's rows of dy x r. Grid: (columns, chunks).
template <class T>
__global__ void weight_gradient(const T* x, const compute_t<T>* rstd, const T* dy,
                                compute_t<T>* partial, int64_t rows, int64_t d, int64_t chunk) {
  using C = compute_t<T>;
  const int64_t begin = blockIdx.y * chunk, end = min(rows, begin + chunk);
  for (int64_t i = first_item(); i < d; i += item_step()) {
    C sum = 0;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * d + i;
      sum = vmath::fma(static_cast<C>(dy[at]), static_cast<C>(x[at]) * rstd[row], sum);
    }
    partial[blockIdx.y * d + i] = sum;
  }
}

}  // namespace

void RmsNorm::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[1].numel() == 0) return;
  const Tensor x = row_major(in[0], stream);
  const Tensor weight = in[1].defined() ? row_major(in[1], stream) : Tensor();
  const int64_t d = x.shape().back(), rows = y[1].numel();
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    launch(forward_kernel<T>, blocks_for(rows, 1), threads_for(d), 0, stream, x.device_data<T>(),
           nullptr, weight.defined() ? weight.device_data<T>() : nullptr, y[0].device_data<T>(),
           nullptr, y[1].device_data<compute_t<T>>(), rows, d, static_cast<compute_t<T>>(eps));
  });
}

void AddRmsNorm::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[2].numel() == 0) return;
  const Tensor x = row_major(in[0], stream), residual = row_major(in[1], stream),
               weight = row_major(in[2], stream);
  const int64_t d = x.shape().back(), rows = y[2].numel();
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    launch(forward_kernel<T>, blocks_for(rows, 1), threads_for(d), 0, stream, x.device_data<T>(),
           residual.device_data<T>(), weight.device_data<T>(), y[0].device_data<T>(),
           y[1].device_data<T>(), y[2].device_data<compute_t<T>>(), rows, d,
           static_cast<compute_t<T>>(eps));
  });
}

void RmsNormBackward::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t d = y[1].numel();
  if (d == 0) return;
  const Tensor x = row_major(in[0], stream);
  const Tensor weight = in[1].defined() ? row_major(in[1], stream) : Tensor();
  const Tensor rstd = row_major(in[2], stream), dy = row_major(in[3], stream);
  const Tensor more = in.size() > 4 && in[4].defined() ? row_major(in[4], stream) : Tensor();
  const int64_t rows = x.numel() / d, chunk = std::max<int64_t>(16, ceil_div(rows, 256)),
                chunks = ceil_div(rows, chunk);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Tensor partial = empty({chunks, d}, dtype_of<C>, x.device());
    if (rows > 0) {
      launch(input_gradient<T>, blocks_for(rows, 1), threads_for(d), 0, stream, x.device_data<T>(),
             weight.defined() ? weight.device_data<T>() : nullptr, rstd.device_data<C>(),
             dy.device_data<T>(), more.defined() ? more.device_data<T>() : nullptr,
             y[0].device_data<T>(), rows, d);
      const dim3 grid(blocks_for(d), static_cast<unsigned>(chunks));
      launch(weight_gradient<T>, grid, kThreads, 0, stream, x.device_data<T>(),
             rstd.device_data<C>(), dy.device_data<T>(), partial.device_data<C>(), rows, d, chunk);
    }
    launch(join_chunks<C, T>, blocks_for(d), kThreads, 0, stream, partial.device_data<C>(),
           y[1].device_data<T>(), d, chunks);
  });
}

}  // namespace tessera::op
