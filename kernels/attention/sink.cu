// SPDX-License-Identifier: Apache-2.0
// CUDA attention sinks: a thread makes one value; backward, a warp takes a row.
#include "tessera/kernels/attention/sink.h"
#include "tessera/kernels/block_reduce.cuh"
#include "tessera/kernels/launch.cuh"
#include "tessera/kernels/vector_math.h"

namespace tessera::op {
namespace {

struct Sizes {
  int64_t rows, heads, times, d;
  bool heads_inner;

  Sizes(const Tensor& o, bool inner)
      : rows(o.shape()[0] * o.shape()[1] * o.shape()[2]),
        heads(o.shape()[inner ? 2 : 1]),
        times(o.shape()[inner ? 1 : 2]),
        d(o.shape()[3]),
        heads_inner(inner) {}
  // Where the statistics of a row of o stand.
  __device__ int64_t place(int64_t row) const {
    if (!heads_inner) return row;
    const int64_t b = row / heads / times, t = row / heads % times;
    return (b * heads + row % heads) * times + t;
  }
};

template <class C>
__device__ C gate_of(const C* lse, const C* sink, int64_t place, const Sizes& z) {
  const C l = lse[place];
  return l == minus_infinity<C>() ? C(0) : vmath::sigmoid(l - sink[place / z.times % z.heads]);
}

template <class T>
__global__ void scale_rows(const T* o, const compute_t<T>* lse, const compute_t<T>* sink, T* y,
                           Sizes z) {
  using C = compute_t<T>;
  for (int64_t i = first_item(); i < z.rows * z.d; i += item_step())
    y[i] = static_cast<T>(static_cast<C>(o[i]) * gate_of<C>(lse, sink, z.place(i / z.d), z));
}

template <class T>
__global__ void row_gradients(const T* o, const compute_t<T>* lse, const compute_t<T>* sink,
                              const T* dy, T* d_o, compute_t<T>* dlse, Sizes z) {
  using C = compute_t<T>;
  const int lane = threadIdx.x % 32;
  for (int64_t row = first_item() / 32; row < z.rows; row += item_step() / 32) {
    const int64_t place = z.place(row);
    const C gate = gate_of<C>(lse, sink, place, z);
    C sum = 0;
    for (int64_t i = row * z.d + lane; i < (row + 1) * z.d; i += 32) {
      const C g = static_cast<C>(dy[i]);
      sum = vmath::fma(static_cast<C>(o[i]), g, sum);
      d_o[i] = static_cast<T>(g * gate);
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) dlse[place] = sum * gate * (C(1) - gate);
  }
}

}  // namespace

void AttentionSink::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  const Tensor o = row_major(in[0], stream), lse = row_major(in[1], stream),
               sink = row_major(in[2], stream);
  dispatch<dtypes>(o.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    scale_rows<<<blocks_for(o.numel()), kThreads, 0, handle(stream)>>>(
        o.data<T>(), lse.data<C>(), sink.data<C>(), y[0].data<T>(), Sizes(o, heads_inner));
  });
  check_launch(name);
}

void AttentionSinkBackward::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[1].numel() == 0) return;
  const Tensor o = row_major(in[0], stream), lse = row_major(in[1], stream),
               sink = row_major(in[2], stream), dy = row_major(in[3], stream);
  dispatch<dtypes>(o.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    row_gradients<<<blocks_for(lse.numel(), kThreads / 32), kThreads, 0, handle(stream)>>>(
        o.data<T>(), lse.data<C>(), sink.data<C>(), dy.data<T>(), y[0].data<T>(), y[1].data<C>(),
        Sizes(o, heads_inner));
  });
  check_launch(name);
}

}  // namespace tessera::op
