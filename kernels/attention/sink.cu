// SPDX-License-Identifier: Apache-2.0
// CUDA attention sinks: a thread makes one value; backward, a warp takes a row.
#include "tessera/kernels/attention/sink.h"
#include "tessera/kernels/attention/sink_impl.h"
#include "tessera/kernels/shared/launch.cuh"

namespace tessera::op {
namespace {

template <class T>
__global__ void scale_rows(const T* o, Gates<compute_t<T>> gates, T* y, int64_t n, int64_t d) {
  for (int64_t i = first_item(); i < n; i += item_step()) {
    const auto gate = gates.of(gates.place(i / d));
    y[i] = static_cast<T>(static_cast<compute_t<T>>(o[i]) * gate);
  }
}

template <class T>
__global__ void row_gradients(const T* o, Gates<compute_t<T>> gates, const T* dy, T* d_o,
                              compute_t<T>* dlse, int64_t rows, int64_t d) {
  using C = compute_t<T>;
  const int lane = threadIdx.x % 32;
  for (int64_t row = first_item() / 32; row < rows; row += item_step() / 32) {
    const int64_t place = gates.place(row);
    const C gate = gates.of(place);
    C sum = 0;
    for (int64_t i = row * d + lane; i < (row + 1) * d; i += 32) {
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
    launch(scale_rows<T>, blocks_for(o.numel()), kThreads, 0, stream, o.device_data<T>(),
           Gates<C>(o, lse, sink, heads_inner), y[0].device_data<T>(), o.numel(), o.shape().back());
  });
}

void AttentionSinkBackward::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[1].numel() == 0) return;
  const Tensor o = row_major(in[0], stream), lse = row_major(in[1], stream),
               sink = row_major(in[2], stream), dy = row_major(in[3], stream);
  dispatch<dtypes>(o.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    launch(row_gradients<T>, blocks_for(lse.numel(), kThreads / 32), kThreads, 0, stream,
           o.device_data<T>(), Gates<C>(o, lse, sink, heads_inner), dy.device_data<T>(),
           y[0].device_data<T>(), y[1].device_data<C>(), lse.numel(), o.shape().back());
  });
}

}  // namespace tessera::op
