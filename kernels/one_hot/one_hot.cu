// SPDX-License-Identifier: Apache-2.0
// CUDA one_hot. An id out of range makes a row of zeros, since a kernel cannot throw.
#include "tessera/kernels/one_hot/one_hot.h"
#include "tessera/kernels/shared/launch.cuh"

namespace tessera::op {
namespace {

template <class T>
__global__ void one_hot_kernel(const int64_t* ids, T* y, int64_t n, int64_t classes) {
  for (int64_t at = first_item(); at < n; at += item_step())
    y[at] = static_cast<T>(ids[at / classes] == at % classes ? 1.0F : 0.0F);
}

}  // namespace

void OneHot::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t n = y[0].numel();
  if (n == 0) return;
  const Tensor ids = row_major(in[0], stream);
  dispatch<dtypes>(dtype, [&]<class T>() {
    launch(one_hot_kernel<T>, blocks_for(n), kThreads, 0, stream, ids.device_data<int64_t>(),
           y[0].device_data<T>(), n, classes);
  });
}

}  // namespace tessera::op
