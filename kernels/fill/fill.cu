// SPDX-License-Identifier: Apache-2.0
// CUDA fills. Random numbers come from Random::element, the function that the CPU calls too.
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/shared/launch.cuh"
#include "tessera/kernels/shared/piece_index_impl.h"

#include <cstring>

namespace tessera::op {
namespace {

template <class Bits> __global__ void fill_bits(Bits* y, int64_t n, Bits value) {
  for (int64_t i = first_item(); i < n; i += item_step()) y[i] = value;
}

template <class Bits, class T> void launch_fill(const Tensor& y, T value, Stream stream) {
  static_assert(sizeof(Bits) == sizeof(T));
  Bits bits;
  std::memcpy(&bits, &value, sizeof(bits));
  launch(fill_bits<Bits>, blocks_for(y.numel()), kThreads, 0, stream,
         static_cast<Bits*>(y.raw_device_data()), y.numel(), bits);
}

template <class T> __global__ void random_kernel(Random op, PieceIndex place, int64_t n, T* y) {
  for (int64_t i = first_item(); i < n; i += item_step()) {
    y[i] = static_cast<T>(op.element(place.global(i)));
  }
}

}  // namespace

void Fill::cuda(Tensors, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  dispatch<kAllDTypes>(dtype, [&]<class T>() {
    const T converted = element<T>();
    if constexpr (sizeof(T) == 1) launch_fill<uint8_t>(y[0], converted, stream);
    else if constexpr (sizeof(T) == 2) launch_fill<uint16_t>(y[0], converted, stream);
    else if constexpr (sizeof(T) == 4) launch_fill<uint32_t>(y[0], converted, stream);
    else launch_fill<uint64_t>(y[0], converted, stream);
  });
}

void Random::cuda(Tensors, Outputs y, Stream stream) const {
  const int64_t n = y[0].numel();
  if (n == 0) return;
  const PieceIndex place = place_of_output(*this);
  dispatch<dtypes>(dtype, [&]<class T>() {
    launch(random_kernel<T>, blocks_for(n), kThreads, 0, stream, *this, place, n,
           y[0].device_data<T>());
  });
}

}  // namespace tessera::op
