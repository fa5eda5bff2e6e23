// SPDX-License-Identifier: Apache-2.0
// CUDA arange, by the function that the CPU calls too.
#include "tessera/kernels/arange/arange.h"
#include "tessera/kernels/shared/launch.cuh"

namespace tessera::op {
namespace {

template <class T> __global__ void arange_kernel(Arange op, T* y) {
  for (int64_t i = first_item(); i < op.count; i += item_step()) y[i] = op.element<T>(i);
}

}  // namespace

void Arange::cuda(Tensors, Outputs y, Stream stream) const {
  if (count == 0) return;
  dispatch<dtypes>(dtype, [&]<class T>() {
    arange_kernel<<<blocks_for(count), kThreads, 0, handle(stream)>>>(*this, y[0].data<T>());
  });
  check_launch(name);
}

}  // namespace tessera::op
