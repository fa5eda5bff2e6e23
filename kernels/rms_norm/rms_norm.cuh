// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels of rms_norm. Forward: a block takes a row, in packs. Backward is that of
// layer_norm without its mean.
#pragma once

#include "tessera/kernels/norms/norm_backward.cuh"
#include "tessera/kernels/rms_norm/rms_norm.h"
#include "tessera/kernels/shared/block_reduce.cuh"
#include "tessera/kernels/vector_math.h"

namespace tessera::op::rms_norm_cuda {

inline constexpr Tuning kTuning{16, 256};

// With a residual, its sum with x, rounded, is written to `sum` and is what is normalised.
template <int kPack, class T>
__global__ void forward_kernel(const T* x, const T* residual, const T* weight, T* y, T* sum,
                               compute_t<T>* rstd, int64_t rows, int64_t d, compute_t<T> eps,
                               compute_t<T> offset) {
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
      const auto w = weights_at<kPack>(weight, i, offset);
#pragma unroll
      for (int e = 0; e < kPack; ++e) v.v[e] = static_cast<T>(static_cast<C>(v.v[e]) * r * w.v[e]);
      store_pack(y + row * d + i, v);
    }
  }
}

// The offset as a kernel adds it.
template <class T> compute_t<T> addend_of(double offset) {
  return static_cast<compute_t<T>>(offset == 0 ? kNoOffset : offset);
}

// Blocks of at most `threads` threads for rows of d elements.
template <int kPack> unsigned row_threads(int64_t d, int threads) {
  return static_cast<unsigned>(threads_for(ceil_div(d, kPack), threads));
}

// y and, with a residual, sum; rstd. All row-major, weight and residual may be undefined.
template <class T, int bytes>
void forward(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& y,
             const Tensor& sum, const Tensor& rstd, double eps, double offset, Stream stream,
             int threads) {
  const int64_t rows = rstd.numel(), d = x.shape().back();
  const auto run = [&]<int kPack>() {
    launch(forward_kernel<kPack, T>, blocks_for(rows, 1), row_threads<kPack>(d, threads), 0, stream,
           x.device_data<T>(), data_or_null<T>(residual), data_or_null<T>(weight),
           y.device_data<T>(), data_or_null<T>(sum), rstd.device_data<compute_t<T>>(), rows, d,
           static_cast<compute_t<T>>(eps), addend_of<T>(offset));
  };
  with_pack<bytes>(d % kPackOf<T, bytes> == 0, run, x.device_data<T>(), data_or_null<T>(residual),
                   data_or_null<T>(weight), y.device_data<T>(), data_or_null<T>(sum));
}

// dx and dweight; `more` may be undefined.
template <class T, int bytes>
void backward(const Tensor& x, const Tensor& weight, const Tensor& rstd, const Tensor& dy,
              const Tensor& more, const Tensor& dx, const Tensor& dweight, double offset,
              Stream stream, int threads) {
  const NormRows<T> rows{.x = x.device_data<T>(),
                         .weight = data_or_null<T>(weight),
                         .dy = dy.device_data<T>(),
                         .more = data_or_null<T>(more),
                         .mean = nullptr,
                         .rstd = rstd.device_data<compute_t<T>>(),
                         .dx = dx.device_data<T>(),
                         .rows = rstd.numel(),
                         .d = x.shape().back(),
                         .offset = addend_of<T>(offset)};
  norm_backward<bytes, false>(rows, dweight.device_data<T>(), static_cast<T*>(nullptr), x.device(),
                              stream, threads);
}

}  // namespace tessera::op::rms_norm_cuda
