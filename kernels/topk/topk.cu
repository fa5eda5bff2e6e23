// SPDX-License-Identifier: Apache-2.0
// CUDA topk: a block takes one column and finds its elements one after the other, each the first in
// order after the last one found. Reads the column k times, which is cheap for the few that routers
// and samplers ask for.
#include "tessera/kernels/shared/launch.cuh"
#include "tessera/kernels/topk/topk.h"

namespace tessera::op {
namespace {

template <class C> struct Pick {
  C value;
  int64_t index;  // -1: none
};

// The best of each thread of a block.
template <class C> struct Picks {
  C value[kThreads];
  int64_t index[kThreads];
};

// Larger (or smaller) values first, NaN above all, equal values by their index.
template <class C> __device__ bool before(const Pick<C>& a, const Pick<C>& b, bool largest) {
  if (a.index < 0 || b.index < 0) return b.index < 0 && a.index >= 0;
  const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
  if (nan_a != nan_b) return nan_a == largest;
  if (!nan_a && a.value != b.value) return (a.value > b.value) == largest;
  return a.index < b.index;
}

template <class T>
__global__ void topk_kernel(const T* x, T* values, int64_t* indices, int64_t columns, int64_t n,
                            int64_t inner, int64_t k, bool largest) {
  using C = compute_t<T>;
  auto& [value, index] = block_shared<Picks<C>>();
  const int t = threadIdx.x;
  for (int64_t column = blockIdx.x; column < columns; column += gridDim.x) {
    const T* in = x + column / inner * n * inner + column % inner;
    const int64_t out = column / inner * k * inner + column % inner;
    Pick<C> last{C{}, -1};
    for (int64_t rank = 0; rank < k; ++rank) {
      Pick<C> best{C{}, -1};
      for (int64_t i = t; i < n; i += blockDim.x) {
        const Pick<C> here{static_cast<C>(in[i * inner]), i};
        if ((rank == 0 || before(last, here, largest)) && before(here, best, largest)) best = here;
      }
      value[t] = best.value;
      index[t] = best.index;
      __syncthreads();
      for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half && before(Pick<C>{value[t + half], index[t + half]},
                               Pick<C>{value[t], index[t]}, largest)) {
          value[t] = value[t + half];
          index[t] = index[t + half];
        }
        __syncthreads();
      }
      last = {value[0], index[0]};
      if (t == 0) {
        values[out + rank * inner] = in[last.index * inner];
        indices[out + rank * inner] = last.index;
      }
      __syncthreads();
    }
  }
}

}  // namespace

void TopK::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  const Tensor x = row_major(in[0], stream);
  const DimView v(x.shape(), dim, name);
  const int64_t columns = v.outer * v.inner;
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    launch(topk_kernel<T>, blocks_for(columns, 1), threads_for(v.n), 0, stream, x.device_data<T>(),
           y[0].device_data<T>(), y[1].device_data<int64_t>(), columns, v.n, v.inner, k, largest);
  });
}

}  // namespace tessera::op
