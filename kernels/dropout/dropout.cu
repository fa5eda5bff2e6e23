// SPDX-License-Identifier: Apache-2.0
// CUDA dropout: a thread compares the bits of its element, as the CPU does. Key and row are read on
// the device, so that a captured graph can be replayed with another.
#include "tessera/kernels/dropout/dropout.h"
#include "tessera/kernels/shared/launch.cuh"
#include "tessera/kernels/shared/piece_index_impl.h"

namespace tessera::op {
namespace {

template <class T>
__global__ void dropout_kernel(const T* x, const int64_t* seed, const int64_t* stream,
                               const int64_t* row, T* y, int64_t n, PieceIndex place,
                               int64_t row_size, uint32_t threshold, compute_t<T> scale) {
  const RngKey key{static_cast<uint64_t>(*seed), static_cast<uint64_t>(*stream)};
  place.base += *row * row_size;
  for (int64_t i = first_item(); i < n; i += item_step()) {
    const uint64_t at = place.global(i);
    const bool stays = rng::philox(key, at / 4).v[at % 4] >= threshold;
    y[i] = stays ? static_cast<T>(static_cast<compute_t<T>>(x[i]) * scale) : T(0);
  }
}

}  // namespace

void Dropout::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t n = y[0].numel();
  if (n == 0) return;
  const Tensor x = row_major(in[0], stream);
  const PieceIndex place(x.shape(), start, whole);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    launch(dropout_kernel<T>, blocks_for(n), kThreads, 0, stream, x.device_data<T>(),
           in[1].device_data<int64_t>(), in[2].device_data<int64_t>(), in[3].device_data<int64_t>(),
           y[0].device_data<T>(), n, place, row_size(), threshold(),
           static_cast<compute_t<T>>(scale()));
  });
}

}  // namespace tessera::op
