// SPDX-License-Identifier: Apache-2.0
// CUDA quantize: magnitudes are joined as the integers that their bits are, whose maximum does not
// depend on the order.
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/quantize/quantize.h"
#include "tessera/kernels/shared/block_reduce.cuh"
#include "tessera/kernels/shared/launch.cuh"

namespace tessera::op {
namespace {

constexpr DTypeSet kF8 = dtypes_of(DType::f8_e4m3, DType::f8_e5m2);

// A block per row: the largest magnitude of it, NaN above all.
template <class T> __global__ void row_maxima(const T* x, int64_t rows, int64_t n, float* maxima) {
  auto& shared = block_shared<int32_t[32]>();
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    int32_t top = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
      top = max(top, __float_as_int(static_cast<float>(x[row * n + i])) & 0x7fffffff);
    top = block_reduce(top, MaxOf{}, shared);
    if (threadIdx.x == 0) maxima[row] = __int_as_float(top);
  }
}

// The largest of a tensor, in two rounds: of each block's elements, then of the blocks'.
template <class T> __global__ void block_maxima(const T* x, int64_t n, float* maxima) {
  auto& shared = block_shared<int32_t[32]>();
  int32_t top = 0;
  for (int64_t i = first_item(); i < n; i += item_step())
    top = max(top, __float_as_int(static_cast<float>(x[i])) & 0x7fffffff);
  top = block_reduce(top, MaxOf{}, shared);
  if (threadIdx.x == 0) maxima[blockIdx.x] = __int_as_float(top);
}

__global__ void make_scales(const float* maxima, int64_t n, float limit, float* scales) {
  for (int64_t i = first_item(); i < n; i += item_step()) {
    const float scale = __fdiv_rn(maxima[i], limit);
    scales[i] = scale == 0 ? 1 : scale;
  }
}

template <class T, class F8>
__global__ void round_kernel(const T* x, const float* scales, int64_t total, int64_t n, float limit,
                             F8* y) {
  for (int64_t i = first_item(); i < total; i += item_step()) {
    const float v = __fdiv_rn(static_cast<float>(x[i]), scales[i / n]);
    const float low = v > limit ? limit : v;
    y[i] = F8(low < -limit ? -limit : low);
  }
}

template <class F8, class T>
__global__ void widen_kernel(const F8* values, const float* scales, int64_t total, int64_t n,
                             T* y) {
  for (int64_t i = first_item(); i < total; i += item_step())
    y[i] = static_cast<T>(static_cast<float>(values[i]) * scales[i / n]);
}

}  // namespace

void Quantize::cuda(Tensors in, Outputs y, Stream stream) const {
  const Tensor x = row_major(in[0], stream);
  const int64_t total = x.numel(), rows = y[1].numel();
  const int64_t n = per_row ? x.shape().back() : total;
  if (rows == 0) return;
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    const Tensor maxima = empty({rows}, DType::f32, x.device());
    if (per_row) {
      launch(row_maxima<T>, blocks_for(rows, 1), threads_for(n), 0, stream, x.device_data<T>(),
             rows, n, maxima.device_data<float>());
    } else {
      const unsigned blocks = blocks_for(total);
      const Tensor parts = empty({blocks}, DType::f32, x.device());
      launch(block_maxima<T>, blocks, kThreads, 0, stream, x.device_data<T>(), total,
             parts.device_data<float>());
      launch(block_maxima<float>, 1, kThreads, 0, stream, parts.device_data<float>(), blocks,
             maxima.device_data<float>());
    }
    if (joiner) joiner->all_reduce(maxima, Join::max);
    launch(make_scales, blocks_for(rows), kThreads, 0, stream, maxima.device_data<float>(), rows,
           static_cast<float>(largest_number(to)), y[1].device_data<float>());
    if (total == 0) return;
    dispatch<kF8>(to, [&]<class F8>() {
      launch(round_kernel<T, F8>, blocks_for(total), kThreads, 0, stream, x.device_data<T>(),
             y[1].device_data<float>(), total, n, static_cast<float>(largest_number(to)),
             y[0].device_data<F8>());
    });
  });
}

void Dequantize::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t total = y[0].numel();
  if (total == 0) return;
  const Tensor values = row_major(in[0], stream), scale = row_major(in[1], stream);
  const int64_t n = total / scale.numel();
  dispatch<dtypes>(values.dtype(), [&]<class F8>() {
    dispatch<Quantize::dtypes>(to, [&]<class T>() {
      launch(widen_kernel<F8, T>, blocks_for(total), kThreads, 0, stream, values.device_data<F8>(),
             scale.device_data<float>(), total, n, y[0].device_data<T>());
    });
  });
}

}  // namespace tessera::op
