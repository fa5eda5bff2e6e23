// SPDX-License-Identifier: Apache-2.0
// CUDA layer_norm: a block takes a row. The gradients of weight and bias are summed over chunks of
// rows, then over the chunks in order: no atomics, the same bits on every run.
#include "tessera/kernels/layer_norm/layer_norm.h"
#include "tessera/kernels/shared/block_reduce.cuh"
#include "tessera/kernels/shared/launch.cuh"
#include "tessera/kernels/shared/weight_chunks.cuh"
#include "tessera/kernels/vector_math.h"

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
      const C v = (static_cast<C>(x[row * d + i]) - mean) * r * static_cast<C>(weight[i]);
      y[row * d + i] = static_cast<T>(bias ? v + static_cast<C>(bias[i]) : v);
    }
  }
}

// dx = r (g - mean(g) - n mean(g n)) with g = w dy and n the normalised x.
template <class T>
__global__ void input_gradient(const T* x, const T* weight, const compute_t<T>* means,
                               const compute_t<T>* rstd, const T* dy, T* dx, int64_t rows,
                               int64_t d) {
  using C = compute_t<T>;
  auto& shared = block_shared<C[32]>();
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const C mean = means[row], r = rstd[row];
    C sum = 0, dot = 0;
    for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
      const int64_t at = row * d + i;
      const C g = static_cast<C>(weight[i]) * static_cast<C>(dy[at]);
      sum += g;
      dot = vmath::fma(g, (static_cast<C>(x[at]) - mean) * r, dot);
    }
    const C shift = block_reduce(sum, SumOf{}, shared) / static_cast<C>(d),
            slope = block_reduce(dot, SumOf{}, shared) / static_cast<C>(d);
    for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
      const int64_t at = row * d + i;
      const C g = static_cast<C>(weight[i]) * static_cast<C>(dy[at]);
      dx[at] = static_cast<T>(r * (g - shift - (static_cast<C>(x[at]) - mean) * r * slope));
    }
  }
}

// Of each chunk of rows: sums of dy n for the weight, of dy for the bias. Grid: (columns, chunks).
template <class T>
__global__ void parameter_gradients(const T* x, const compute_t<T>* means, const compute_t<T>* rstd,
                                    const T* dy, compute_t<T>* weight_parts,
                                    compute_t<T>* bias_parts, int64_t rows, int64_t d,
                                    int64_t chunk) {
  using C = compute_t<T>;
  const int64_t begin = blockIdx.y * chunk, end = min(rows, begin + chunk);
  for (int64_t i = first_item(); i < d; i += item_step()) {
    C weight_sum = 0, bias_sum = 0;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * d + i;
      const C g = static_cast<C>(dy[at]);
      weight_sum = vmath::fma(g, (static_cast<C>(x[at]) - means[row]) * rstd[row], weight_sum);
      bias_sum += g;
    }
    weight_parts[blockIdx.y * d + i] = weight_sum;
    bias_parts[blockIdx.y * d + i] = bias_sum;
  }
}

}  // namespace

void LayerNorm::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[1].numel() == 0) return;
  const Tensor x = row_major(in[0], stream), weight = row_major(in[1], stream);
  const Tensor bias = in.size() > 2 && in[2].defined() ? row_major(in[2], stream) : Tensor();
  const int64_t d = x.shape().back(), rows = y[1].numel();
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    launch(forward_kernel<T>, blocks_for(rows, 1), threads_for(d), 0, stream, x.device_data<T>(),
           weight.device_data<T>(), bias.defined() ? bias.device_data<T>() : nullptr,
           y[0].device_data<T>(), y[1].device_data<compute_t<T>>(),
           y[2].device_data<compute_t<T>>(), rows, d, static_cast<compute_t<T>>(eps));
  });
}

void LayerNormBackward::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t d = y[1].numel();
  if (d == 0) return;
  const Tensor x = row_major(in[0], stream), weight = row_major(in[1], stream);
  const Tensor mean = row_major(in[2], stream), rstd = row_major(in[3], stream),
               dy = row_major(in[4], stream);
  const int64_t rows = x.numel() / d, chunk = std::max<int64_t>(16, ceil_div(rows, 256)),
                chunks = ceil_div(rows, chunk);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Tensor parts = empty({2, chunks, d}, dtype_of<C>, x.device());
    C *weight_parts = parts.device_data<C>(), *bias_parts = weight_parts + chunks * d;
    if (rows > 0) {
      launch(input_gradient<T>, blocks_for(rows, 1), threads_for(d), 0, stream, x.device_data<T>(),
             weight.device_data<T>(), mean.device_data<C>(), rstd.device_data<C>(),
             dy.device_data<T>(), y[0].device_data<T>(), rows, d);
      const dim3 grid(blocks_for(d), static_cast<unsigned>(chunks));
      launch(parameter_gradients<T>, grid, kThreads, 0, stream, x.device_data<T>(),
             mean.device_data<C>(), rstd.device_data<C>(), dy.device_data<T>(), weight_parts,
             bias_parts, rows, d, chunk);
    }
    launch(join_chunks<C, T>, blocks_for(d), kThreads, 0, stream, weight_parts,
           y[1].device_data<T>(), d, chunks);
    launch(join_chunks<C, T>, blocks_for(d), kThreads, 0, stream, bias_parts, y[2].device_data<T>(),
           d, chunks);
  });
}

}  // namespace tessera::op
