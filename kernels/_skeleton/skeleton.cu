// SPDX-License-Identifier: Apache-2.0
// The CUDA kernel: say how blocks and threads share the work.
#include "tessera/kernels/shared/launch.cuh"
#include "tessera/kernels/skeleton/skeleton.h"

namespace tessera::op {
namespace {

template <class T>
__global__ void skeleton_kernel(const T* x, const T* w, compute_t<T> factor, T* y, int64_t n,
                                int64_t d) {
  using C = compute_t<T>;
  for (int64_t i = first_item(); i < n; i += item_step()) {
    y[i] = static_cast<T>(static_cast<C>(x[i]) * static_cast<C>(w[i % d]) * factor);
  }
}

}  // namespace

void Skeleton::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t n = y[0].numel();
  if (n == 0) return;
  const Tensor x = row_major(in[0], stream), w = row_major(in[1], stream);  // (..., d), (d)
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    launch(skeleton_kernel<T>, blocks_for(n), kThreads, 0, stream, x.device_data<T>(),
           w.device_data<T>(), static_cast<compute_t<T>>(factor), y[0].device_data<T>(), n,
           x.shape().back());
  });
}

}  // namespace tessera::op
