// SPDX-License-Identifier: Apache-2.0
// CUDA layer_norm: in forward, a block takes a row.
#include "tessera/kernels/layer_norm/layer_norm.h"
#include "tessera/kernels/norms/norm_backward.cuh"
#include "tessera/kernels/shared/block_reduce.cuh"

namespace tessera::op {
namespace {

template <class T>
__global__ void forward_kernel(const T* x, const T* weight, const T* bias, T* y,
                               compute_t<T>* means, compute_t<T>* rstd, int64_t rows, int64_t d,
                               compute_t<T> eps) {
  using C = compute_t<T>;
  auto& shared = block_shared<C[32]>();
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    C sum = 0, squares = 0;
    for (int64_t i = threadIdx.x; i < d; i += blockDim.x) sum += static_cast<C>(x[row * d + i]);
    const C mean = block_reduce(sum, SumOf{}, shared) / static_cast<C>(d);
    for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
      const C v = static_cast<C>(x[row * d + i]) - mean;
      squares = vmath::fma(v, v, squares);
    }
    squares = block_reduce(squares, SumOf{}, shared);
    const C r = C(1) / std::sqrt(squares / static_cast<C>(d) + eps);
    if (threadIdx.x == 0) {
      means[row] = mean;
      rstd[row] = r;
    }
    for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
      C v = (static_cast<C>(x[row * d + i]) - mean) * r;
      if (weight) v *= static_cast<C>(weight[i]);
      if (bias) v += static_cast<C>(bias[i]);
      y[row * d + i] = static_cast<T>(v);
    }
  }
}

}  // namespace

void LayerNorm::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[1].numel() == 0) return;
  const Tensor x = row_major(in[0], stream), weight = row_major_if_given(in[1], stream),
               bias = in.size() > 2 ? row_major_if_given(in[2], stream) : Tensor();
  const int64_t d = x.shape().back(), rows = y[1].numel();
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    launch(forward_kernel<T>, blocks_for(rows, 1), threads_for(d), 0, stream, x.device_data<T>(),
           data_or_null<T>(weight), data_or_null<T>(bias), y[0].device_data<T>(),
           y[1].device_data<compute_t<T>>(), y[2].device_data<compute_t<T>>(), rows, d,
           static_cast<compute_t<T>>(eps));
  });
}

void LayerNormBackward::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[1].numel() == 0) return;
  const Tensor x = row_major(in[0], stream), weight = row_major_if_given(in[1], stream);
  const Tensor mean = row_major(in[2], stream), rstd = row_major(in[3], stream),
               dy = row_major(in[4], stream);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const NormRows<T> rows{.x = x.device_data<T>(),
                           .weight = data_or_null<T>(weight),
                           .dy = dy.device_data<T>(),
                           .more = nullptr,
                           .mean = mean.device_data<C>(),
                           .rstd = rstd.device_data<C>(),
                           .dx = y[0].device_data<T>(),
                           .rows = rstd.numel(),
                           .d = x.shape().back()};
    norm_backward<16, true>(rows, y[1].device_data<T>(), y[2].device_data<T>(), x.device(), stream,
                            kThreads);
  });
}

}  // namespace tessera::op
