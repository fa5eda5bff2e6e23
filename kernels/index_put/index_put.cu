// SPDX-License-Identifier: Apache-2.0
// CUDA index_put_: a thread per element of a slice goes through the indices in their order, so that
// equal places need no atomics. What lies outside is left out: a kernel cannot throw.
#include "tessera/kernels/index_put/index_put.h"
#include "tessera/kernels/shared/loop_nest.cuh"

#include <type_traits>

namespace tessera::op {
namespace {

struct Indices {
  int count = 0;
  const int64_t* index[kMaxRank] = {};
  int64_t size[kMaxRank] = {}, step[kMaxRank] = {};

  // Where slice j begins, or -1.
  __device__ int64_t start(int64_t j) const {
    int64_t at = 0;
    for (int k = 0; k < count; ++k) {
      const int64_t i = index[k][j];
      if (i < 0 || i >= size[k]) return -1;
      at += i * step[k];
    }
    return at;
  }
};

template <class T>
__global__ void put_kernel(T* x, const T* values, Indices indices, DeviceNest<1> nest, int64_t size,
                           int64_t m, bool accumulate) {
  for (int64_t i = first_item(); i < size; i += item_step()) {
    int64_t at[1];
    nest.offsets(i, at);
    for (int64_t j = 0; j < m; ++j) {
      const int64_t start = indices.start(j);
      if (start < 0) continue;
      T& y = x[start + at[0]];
      const T v = values[j * size + i];
      if (!accumulate) {
        y = v;
      } else if constexpr (std::is_same_v<T, bool>) {
        y = v;  // meta refuses sums of truths
      } else if constexpr (std::is_integral_v<T>) {
        using U = std::make_unsigned_t<T>;
        y = static_cast<T>(static_cast<U>(y) + static_cast<U>(v));
      } else {
        y = static_cast<T>(static_cast<compute_t<T>>(y) + static_cast<compute_t<T>>(v));
      }
    }
  }
}

}  // namespace

void IndexPut::cuda(Tensors in, Outputs written, Stream stream) const {
  const Tensor& x = written[0];
  const Tensor values = row_major(in[1], stream);  // (m, ...)
  const Tensor slice = first_slice(x, in.size() - 2);
  const int64_t m = in[2].numel(), size = slice.numel();
  if (m == 0 || size == 0) return;
  Indices indices;
  std::vector<Tensor> held;  // row-major copies live until the launch
  for (size_t i = 2; i < in.size(); ++i) {
    const int k = indices.count++;
    held.push_back(row_major(in[i], stream));
    indices.index[k] = held.back().device_data<int64_t>();
    indices.size[k] = x.shape()[k];
    indices.step[k] = x.strides()[k];
  }
  const DeviceNest<1> nest(LoopNest<1>(slice.shape(), {&slice}));
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    launch(put_kernel<T>, blocks_for(size), kThreads, 0, stream, x.device_data<T>(),
           values.device_data<T>(), indices, nest, size, m, accumulate);
  });
}

}  // namespace tessera::op
