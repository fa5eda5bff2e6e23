// SPDX-License-Identifier: Apache-2.0
// CUDA swiglu and both of its gradients, each in one pass.
#include "tessera/kernels/launch.cuh"
#include "tessera/kernels/swiglu/swiglu.h"
#include "tessera/kernels/vector_math.h"

namespace tessera::op {
namespace {

template <class T> __global__ void forward_kernel(const T* gate, const T* up, T* y, int64_t n) {
  using C = compute_t<T>;
  for (int64_t i = first_item(); i < n; i += item_step()) {
    const C g = static_cast<C>(gate[i]);
    y[i] = static_cast<T>(g * vmath::sigmoid(g) * static_cast<C>(up[i]));
  }
}

template <class T>
__global__ void backward_kernel(const T* gate, const T* up, const T* dy, T* dgate, T* dup,
                                int64_t n) {
  using C = compute_t<T>;
  for (int64_t i = first_item(); i < n; i += item_step()) {
    const C g = static_cast<C>(gate[i]), d = static_cast<C>(dy[i]), s = vmath::sigmoid(g);
    dgate[i] = static_cast<T>(d * static_cast<C>(up[i]) * s * (C(1) + g * (C(1) - s)));
    dup[i] = static_cast<T>(d * g * s);
  }
}

}  // namespace

void Swiglu::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t n = y[0].numel();
  if (n == 0) return;
  const Tensor gate = row_major(in[0], stream), up = row_major(in[1], stream);
  dispatch<dtypes>(gate.dtype(), [&]<class T>() {
    forward_kernel<<<blocks_for(n), kThreads, 0, handle(stream)>>>(gate.data<T>(), up.data<T>(),
                                                                   y[0].data<T>(), n);
  });
  check_launch(name);
}

void SwigluBackward::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t n = y[0].numel();
  if (n == 0) return;
  const Tensor gate = row_major(in[0], stream), up = row_major(in[1], stream),
               dy = row_major(in[2], stream);
  dispatch<dtypes>(gate.dtype(), [&]<class T>() {
    backward_kernel<<<blocks_for(n), kThreads, 0, handle(stream)>>>(
        gate.data<T>(), up.data<T>(), dy.data<T>(), y[0].data<T>(), y[1].data<T>(), n);
  });
  check_launch(name);
}

}  // namespace tessera::op
