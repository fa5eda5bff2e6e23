// SPDX-License-Identifier: Apache-2.0
// CUDA tril and triu: an element stays or is zero.
#include "tessera/kernels/shared/launch.cuh"
#include "tessera/kernels/triangle/triangle.h"

namespace tessera::op {
namespace {

template <class T>
__global__ void triangle_kernel(const T* x, T* y, int64_t n, int64_t height, int64_t width,
                                int64_t diagonal, bool upper) {
  for (int64_t at = first_item(); at < n; at += item_step()) {
    const int64_t j = at % width, i = at / width % height;
    const bool stays = upper ? j - i >= diagonal : j - i <= diagonal;
    y[at] = stays ? x[at] : T{};
  }
}

}  // namespace

void Triangle::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t n = y[0].numel();
  if (n == 0) return;
  const Tensor x = row_major(in[0], stream);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    launch(triangle_kernel<T>, blocks_for(n), kThreads, 0, stream, x.device_data<T>(),
           y[0].device_data<T>(), n, x.shape()[x.rank() - 2], x.shape().back(), bounded(), upper);
  });
}

}  // namespace tessera::op
