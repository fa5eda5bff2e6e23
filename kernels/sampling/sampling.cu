// SPDX-License-Identifier: Apache-2.0
// CUDA randint, by RandInt::element, the function that the CPU calls too.
#include "tessera/kernels/sampling/sampling.h"
#include "tessera/kernels/shared/launch.cuh"
#include "tessera/kernels/shared/piece_index_impl.h"

namespace tessera::op {
namespace {

template <class T> __global__ void randint_kernel(RandInt op, PieceIndex place, int64_t n, T* y) {
  for (int64_t i = first_item(); i < n; i += item_step())
    y[i] = static_cast<T>(op.element(place.global(i)));
}

}  // namespace

void RandInt::cuda(Tensors, Outputs y, Stream stream) const {
  const int64_t n = y[0].numel();
  if (n == 0) return;
  const PieceIndex place = place_of_output(*this);
  dispatch<dtypes>(dtype, [&]<class T>() {
    launch(randint_kernel<T>, blocks_for(n), kThreads, 0, stream, *this, place, n,
           y[0].device_data<T>());
  });
}

}  // namespace tessera::op
