// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels of rms_norm: a block takes a row, in packs. The weight's gradient is summed over
// chunks of rows, then over the chunks in order: no atomics, the same bits on every run.
#pragma once

#include "tessera/kernels/rms_norm/rms_norm.h"
#include "tessera/kernels/shared/block_reduce.cuh"
#include "tessera/kernels/shared/pack.cuh"
#include "tessera/kernels/shared/weight_chunks.cuh"
#include "tessera/kernels/vector_math.h"

namespace tessera::op::rms_norm_cuda {

inline constexpr Tuning kTuning{16, 256};

// A weight that is not given is 1.
template <int kPack, class T>
__device__ __forceinline__ Pack<compute_t<T>, kPack> weights_at(const T* weight, int64_t i) {
  Pack<compute_t<T>, kPack> w;
  if (weight) {
    const auto given = load_pack<kPack>(weight + i);
#pragma unroll
    for (int e = 0; e < kPack; ++e) w.v[e] = static_cast<compute_t<T>>(given.v[e]);
  } else {
#pragma unroll
    for (int e = 0; e < kPack; ++e) w.v[e] = 1;
  }
  return w;
}

// With a residual, its sum with x, rounded, is written to `sum` and is what is normalised.
template <int kPack, class T>
__global__ void forward_kernel(const T* x, const T* residual, const T* weight, T* y, T* sum,
                               compute_t<T>* rstd, int64_t rows, int64_t d, compute_t<T> eps) {
  using C = compute_t<T>;
  auto& shared = block_shared<C[32]>();
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    C squares = 0;
    for (int64_t i = threadIdx.x * kPack; i < d; i += blockDim.x * kPack) {
      const int64_t at = row * d + i;
      auto v = load_pack<kPack>(x + at);
      if (residual) {
        const auto more = load_pack<kPack>(residual + at);
#pragma unroll
        for (int e = 0; e < kPack; ++e)
          v.v[e] = static_cast<T>(static_cast<C>(v.v[e]) + static_cast<C>(more.v[e]));
        store_pack(sum + at, v);
      }
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        const C c = static_cast<C>(v.v[e]);
        squares = vmath::fma(c, c, squares);
      }
    }
    squares = block_reduce(squares, SumOf{}, shared);
    const C r = C(1) / std::sqrt(squares / static_cast<C>(d) + eps);
    if (threadIdx.x == 0) rstd[row] = r;
    const T* from = residual ? sum : x;  // each thread reads what it wrote itself
    for (int64_t i = threadIdx.x * kPack; i < d; i += blockDim.x * kPack) {
      auto v = load_pack<kPack>(from + row * d + i);
      const auto w = weights_at<kPack>(weight, i);
#pragma unroll
      for (int e = 0; e < kPack; ++e) v.v[e] = static_cast<T>(static_cast<C>(v.v[e]) * r * w.v[e]);
      store_pack(y + row * d + i, v);
    }
  }
}

// dx = r (w dy - x r^2 mean(w dy x)) with r = 1/rms, and `more` if that is given.
template <int kPack, class T>
__global__ void input_gradient(const T* x, const T* weight, const compute_t<T>* rstd, const T* dy,
                               const T* more, T* dx, int64_t rows, int64_t d) {
  using C = compute_t<T>;
  auto& shared = block_shared<C[32]>();
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    C dot = 0;
    for (int64_t i = threadIdx.x * kPack; i < d; i += blockDim.x * kPack) {
      const auto a = load_pack<kPack>(x + row * d + i), g = load_pack<kPack>(dy + row * d + i);
      const auto w = weights_at<kPack>(weight, i);
#pragma unroll
      for (int e = 0; e < kPack; ++e)
        dot = vmath::fma(w.v[e] * static_cast<C>(g.v[e]), static_cast<C>(a.v[e]), dot);
    }
    dot = block_reduce(dot, SumOf{}, shared);
    const C r = rstd[row], pull = dot * r * r / static_cast<C>(d);
    for (int64_t i = threadIdx.x * kPack; i < d; i += blockDim.x * kPack) {
      const int64_t at = row * d + i;
      const auto a = load_pack<kPack>(x + at), g = load_pack<kPack>(dy + at);
      const auto w = weights_at<kPack>(weight, i);
      Pack<T, kPack> to, added;
      if (more) added = load_pack<kPack>(more + at);
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        const C own = r * (w.v[e] * static_cast<C>(g.v[e]) - static_cast<C>(a.v[e]) * pull);
        to.v[e] = static_cast<T>(more ? own + static_cast<C>(added.v[e]) : own);
      }
      store_pack(dx + at, to);
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

template <class T> T* data_or_null(const Tensor& x) {
  return x.defined() ? x.device_data<T>() : nullptr;
}

// Blocks of at most `threads` threads for rows of d elements.
template <int kPack> unsigned row_threads(int64_t d, int threads) {
  return static_cast<unsigned>(threads_for(ceil_div(d, kPack), threads));
}

// y and, with a residual, sum; rstd. All row-major, weight and residual may be undefined.
template <class T, int bytes>
void forward(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& y,
             const Tensor& sum, const Tensor& rstd, double eps, Stream stream, int threads) {
  const int64_t rows = rstd.numel(), d = x.shape().back();
  const auto run = [&]<int kPack>() {
    launch(forward_kernel<kPack, T>, blocks_for(rows, 1), row_threads<kPack>(d, threads), 0, stream,
           x.device_data<T>(), data_or_null<T>(residual), data_or_null<T>(weight),
           y.device_data<T>(), data_or_null<T>(sum), rstd.device_data<compute_t<T>>(), rows, d,
           static_cast<compute_t<T>>(eps));
  };
  with_pack<bytes>(d % kPackOf<T, bytes> == 0, run, x.device_data<T>(), data_or_null<T>(residual),
                   data_or_null<T>(weight), y.device_data<T>(), data_or_null<T>(sum));
}

template <class T, int bytes>
void backward_input(const Tensor& x, const Tensor& weight, const Tensor& rstd, const Tensor& dy,
                    const Tensor& more, const Tensor& dx, Stream stream, int threads) {
  const int64_t rows = rstd.numel(), d = x.shape().back();
  const auto run = [&]<int kPack>() {
    launch(input_gradient<kPack, T>, blocks_for(rows, 1), row_threads<kPack>(d, threads), 0, stream,
           x.device_data<T>(), data_or_null<T>(weight), rstd.device_data<compute_t<T>>(),
           dy.device_data<T>(), data_or_null<T>(more), dx.device_data<T>(), rows, d);
  };
  with_pack<bytes>(d % kPackOf<T, bytes> == 0, run, x.device_data<T>(), data_or_null<T>(weight),
                   dy.device_data<T>(), data_or_null<T>(more), dx.device_data<T>());
}

}  // namespace tessera::op::rms_norm_cuda
