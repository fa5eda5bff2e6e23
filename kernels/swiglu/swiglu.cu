// SPDX-License-Identifier: Apache-2.0
// CUDA swiglu and both of its gradients, each in one pass.
#include "tessera/kernels/shared/launch.cuh"
#include "tessera/kernels/swiglu/swiglu.h"
#include "tessera/kernels/swiglu/swiglu_impl.h"

namespace tessera::op {
namespace {

template <class T>
__global__ void forward_kernel(const T* gate, const T* up, Gated<compute_t<T>> f, T* y, int64_t n) {
  using C = compute_t<T>;
  for (int64_t i = first_item(); i < n; i += item_step()) {
    const C g = f.gate(static_cast<C>(gate[i]));
    y[i] = static_cast<T>(g * vmath::sigmoid(f.alpha * g) * f.up(static_cast<C>(up[i])));
  }
}

template <class T>
__global__ void backward_kernel(const T* gate, const T* up, const T* dy, Gated<compute_t<T>> f,
                                T* dgate, T* dup, int64_t n) {
  using C = compute_t<T>;
  for (int64_t i = first_item(); i < n; i += item_step()) {
    const C a = static_cast<C>(gate[i]), b = static_cast<C>(up[i]), d = static_cast<C>(dy[i]);
    const C g = f.gate(a), s = vmath::sigmoid(f.alpha * g);
    const bool gate_moves = !(a > f.limit), up_moves = !(b > f.limit || b < -f.limit);
    dgate[i] =
        static_cast<T>(gate_moves ? d * f.up(b) * s * (C(1) + f.alpha * g * (C(1) - s)) : C(0));
    dup[i] = static_cast<T>(up_moves ? d * g * s : C(0));
  }
}

}  // namespace

void Swiglu::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t n = y[0].numel();
  if (n == 0) return;
  const Tensor gate = row_major(in[0], stream), up = row_major(in[1], stream);
  dispatch<dtypes>(gate.dtype(), [&]<class T>() {
    launch(forward_kernel<T>, blocks_for(n), kThreads, 0, stream, gate.device_data<T>(),
           up.device_data<T>(), Gated<compute_t<T>>(*this), y[0].device_data<T>(), n);
  });
}

void SwigluBackward::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t n = y[0].numel();
  if (n == 0) return;
  const Tensor gate = row_major(in[0], stream), up = row_major(in[1], stream),
               dy = row_major(in[2], stream);
  dispatch<dtypes>(gate.dtype(), [&]<class T>() {
    launch(backward_kernel<T>, blocks_for(n), kThreads, 0, stream, gate.device_data<T>(),
           up.device_data<T>(), dy.device_data<T>(), Gated<compute_t<T>>(*this),
           y[0].device_data<T>(), y[1].device_data<T>(), n);
  });
}

}  // namespace tessera::op
