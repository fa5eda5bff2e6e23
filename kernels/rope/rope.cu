// SPDX-License-Identifier: Apache-2.0
// CUDA rope: a thread rotates a pair.
#include "tessera/kernels/launch.cuh"
#include "tessera/kernels/rope/rope.h"

namespace tessera::op {
namespace {

template <class T>
__global__ void rotate(const T* x, const compute_t<T>* cos, const compute_t<T>* sin, T* y,
                       int64_t pairs, int64_t t, int64_t h, int64_t half, bool inverse) {
  using C = compute_t<T>;
  for (int64_t i = first_item(); i < pairs; i += item_step()) {
    const int64_t place = i / half / h % t * half + i % half;
    const C c = cos[place], s = inverse ? -sin[place] : sin[place];
    const C a = static_cast<C>(x[2 * i]), b = static_cast<C>(x[2 * i + 1]);
    y[2 * i] = static_cast<T>(a * c - b * s);
    y[2 * i + 1] = static_cast<T>(a * s + b * c);
  }
}

}  // namespace

void Rope::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  const Tensor x = row_major(in[0], stream), cos = row_major(in[1], stream),
               sin = row_major(in[2], stream);
  const Shape& s = x.shape();  // (..., t, h, d)
  const int r = s.rank();
  const int64_t pairs = x.numel() / 2;
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    rotate<<<blocks_for(pairs), kThreads, 0, handle(stream)>>>(
        x.data<T>(), cos.data<C>(), sin.data<C>(), y[0].data<T>(), pairs, s[r - 3], s[r - 2],
        s[r - 1] / 2, inverse);
  });
  check_launch(name);
}

}  // namespace tessera::op
