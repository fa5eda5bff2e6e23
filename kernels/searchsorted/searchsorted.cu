// SPDX-License-Identifier: Apache-2.0
// CUDA searchsorted: a thread searches for one value.
#include "tessera/kernels/searchsorted/searchsorted.h"
#include "tessera/kernels/shared/launch.cuh"

namespace tessera::op {
namespace {

template <class T>
__global__ void search_kernel(const T* sorted, const T* values, int64_t* places, int64_t total,
                              int64_t s, int64_t n, bool shared, bool right) {
  for (int64_t i = first_item(); i < total; i += item_step()) {
    const T* row = sorted + (shared ? 0 : i / n * s);
    places[i] = count_before(row, s, 1, static_cast<compute_t<T>>(values[i]), right);
  }
}

}  // namespace

void SearchSorted::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t total = y[0].numel();
  if (total == 0) return;
  const Tensor sorted = row_major(in[0], stream), values = row_major(in[1], stream);
  const int64_t s = sorted.shape().back(), n = values.rank() > 0 ? values.shape().back() : 1;
  dispatch<dtypes>(values.dtype(), [&]<class T>() {
    const T* sequence = s > 0 ? sorted.device_data<T>() : nullptr;
    launch(search_kernel<T>, blocks_for(total), kThreads, 0, stream, sequence,
           values.device_data<T>(), y[0].device_data<int64_t>(), total, s, n, sorted.rank() == 1,
           right);
  });
}

}  // namespace tessera::op
