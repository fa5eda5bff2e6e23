// SPDX-License-Identifier: Apache-2.0
// CUDA fills. Random numbers come from Random::element, the function that the CPU calls too.
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/launch.cuh"

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
  fill_bits<<<blocks_for(y.numel()), kThreads, 0, handle(stream)>>>(
      static_cast<Bits*>(y.raw_data()), y.numel(), bits);
}

// Where a piece lies in the whole; rank 0: the piece is the whole.
struct Placement {
  int rank = 0;
  int64_t sizes[kMaxRank] = {}, starts[kMaxRank] = {}, strides[kMaxRank] = {};

  explicit Placement(const Random& op) {
    if (op.whole.rank() == 0) return;
    rank = op.shape.rank();
    const Shape steps = contiguous_strides(op.whole);
    for (int d = 0; d < rank; ++d) {
      sizes[d] = op.shape[d];
      starts[d] = op.start.rank() ? op.start[d] : 0;
      strides[d] = steps[d];
    }
  }
  __device__ int64_t global(int64_t i) const {
    if (rank == 0) return i;
    int64_t at = 0;
    for (int d = rank - 1; d >= 0; --d) {
      at += (starts[d] + i % sizes[d]) * strides[d];
      i /= sizes[d];
    }
    return at;
  }
};

template <class T> __global__ void random_kernel(Random op, Placement placement, int64_t n, T* y) {
  for (int64_t i = first_item(); i < n; i += item_step()) {
    y[i] = static_cast<T>(op.element(static_cast<uint64_t>(placement.global(i))));
  }
}

}  // namespace

void Fill::cuda(Tensors, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  dispatch<kAllDTypes>(dtype, [&]<class T>() {
    T converted;
    if constexpr (is_floating(dtype_of<T>))
      converted = static_cast<T>(static_cast<compute_t<T>>(value));
    else converted = static_cast<T>(value);
    if constexpr (sizeof(T) == 1) launch_fill<uint8_t>(y[0], converted, stream);
    else if constexpr (sizeof(T) == 2) launch_fill<uint16_t>(y[0], converted, stream);
    else if constexpr (sizeof(T) == 4) launch_fill<uint32_t>(y[0], converted, stream);
    else launch_fill<uint64_t>(y[0], converted, stream);
  });
  check_launch(name);
}

void Random::cuda(Tensors, Outputs y, Stream stream) const {
  const int64_t n = y[0].numel();
  if (n == 0) return;
  const Placement placement(*this);
  dispatch<dtypes>(dtype, [&]<class T>() {
    random_kernel<<<blocks_for(n), kThreads, 0, handle(stream)>>>(*this, placement, n,
                                                                  y[0].data<T>());
  });
  check_launch(name);
}

}  // namespace tessera::op
