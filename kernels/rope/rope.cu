// SPDX-License-Identifier: Apache-2.0
// CUDA rope: a thread makes one value from itself and the other of its pair.
#include "tessera/kernels/rope/rope.h"
#include "tessera/kernels/shared/block_reduce.cuh"
#include "tessera/kernels/shared/launch.cuh"

namespace tessera::op {
namespace {

struct Sizes {
  int64_t values, t, h, d, half, table_rows;
  bool inverse, halves;
};

// positions: null where token t of a sequence has row t of the tables.
template <class T>
__global__ void rotate(const T* x, const compute_t<T>* cos, const compute_t<T>* sin,
                       const int64_t* positions, T* y, Sizes z) {
  using C = compute_t<T>;
  for (int64_t i = first_item(); i < z.values; i += item_step()) {
    const int64_t at = i % z.d;
    if (at >= 2 * z.half) {
      y[i] = x[i];
      continue;
    }
    const int64_t token = i / z.d / z.h, row = positions ? positions[token] : token % z.t;
    if (row < 0 || row >= z.table_rows) {
      y[i] = static_cast<T>(not_a_number<C>());
      continue;
    }
    const int64_t pair = z.halves ? at % z.half : at / 2;
    const bool second = z.halves ? at >= z.half : at % 2 != 0;
    const int64_t distance = z.halves ? z.half : 1, other = second ? i - distance : i + distance;
    const C c = cos[row * z.half + pair], s = sin[row * z.half + pair];
    const C turn = second == z.inverse ? -s : s;
    y[i] = static_cast<T>(static_cast<C>(x[i]) * c + static_cast<C>(x[other]) * turn);
  }
}

}  // namespace

void Rope::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  const Tensor x = row_major(in[0], stream), cos = row_major(in[1], stream),
               sin = row_major(in[2], stream);
  const Tensor positions = in.size() > 3 && in[3].defined() ? row_major(in[3], stream) : Tensor();
  const Shape& s = x.shape();  // (..., t, h, d)
  const int r = s.rank();
  const Sizes z{x.numel(),      s[r - 3],       s[r - 2], s[r - 1],
                cos.shape()[1], cos.shape()[0], inverse,  halves};
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    launch(rotate<T>, blocks_for(z.values), kThreads, 0, stream, x.device_data<T>(),
           cos.device_data<C>(), sin.device_data<C>(),
           positions.defined() ? positions.device_data<int64_t>() : nullptr, y[0].device_data<T>(),
           z);
  });
}

}  // namespace tessera::op
