// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels of swiglu and of both its gradients, each one pass of packs.
#pragma once

#include "tessera/kernels/shared/pack.cuh"
#include "tessera/kernels/swiglu/swiglu.h"
#include "tessera/kernels/swiglu/swiglu_impl.h"

namespace tessera::op::swiglu_cuda {

inline constexpr Tuning kTuning{16, 256};

template <class T> __device__ __forceinline__ T unit(T gate, T up, const Gated<compute_t<T>>& f) {
  using C = compute_t<T>;
  const C g = f.gate(static_cast<C>(gate));
  return static_cast<T>(g * vmath::sigmoid(f.alpha * g) * f.up(static_cast<C>(up)));
}

template <class T> struct Gradients { T gate, up; };
template <class T>
__device__ __forceinline__ Gradients<T> gradients(T gate, T up, T dy,
                                                  const Gated<compute_t<T>>& f) {
  using C = compute_t<T>;
  const C a = static_cast<C>(gate), b = static_cast<C>(up), d = static_cast<C>(dy);
  const C g = f.gate(a), s = vmath::sigmoid(f.alpha * g);
  const bool gate_moves = !(a > f.limit), up_moves = !(b > f.limit || b < -f.limit);
  return {static_cast<T>(gate_moves ? d * f.up(b) * s * (C(1) + f.alpha * g * (C(1) - s)) : C(0)),
          static_cast<T>(up_moves ? d * g * s : C(0))};
}

template <int kPack, class T>
__global__ void forward_kernel(const T* gate, const T* up, Gated<compute_t<T>> f, T* y, int64_t n) {
  const int64_t packed = n / kPack * kPack;
  for (int64_t i = first_item() * kPack; i < packed; i += item_step() * kPack) {
    const auto a = load_pack<kPack>(gate + i), b = load_pack<kPack>(up + i);
    Pack<T, kPack> to;
#pragma unroll
    for (int e = 0; e < kPack; ++e) to.v[e] = unit(a.v[e], b.v[e], f);
    store_pack(y + i, to);
  }
  for (int64_t i = packed + first_item(); i < n; i += item_step()) y[i] = unit(gate[i], up[i], f);
}

template <int kPack, class T>
__global__ void backward_kernel(const T* gate, const T* up, const T* dy, Gated<compute_t<T>> f,
                                T* dgate, T* dup, int64_t n) {
  const int64_t packed = n / kPack * kPack;
  for (int64_t i = first_item() * kPack; i < packed; i += item_step() * kPack) {
    const auto a = load_pack<kPack>(gate + i), b = load_pack<kPack>(up + i),
               d = load_pack<kPack>(dy + i);
    Pack<T, kPack> to_gate, to_up;
#pragma unroll
    for (int e = 0; e < kPack; ++e) {
      const Gradients<T> g = gradients(a.v[e], b.v[e], d.v[e], f);
      to_gate.v[e] = g.gate, to_up.v[e] = g.up;
    }
    store_pack(dgate + i, to_gate);
    store_pack(dup + i, to_up);
  }
  for (int64_t i = packed + first_item(); i < n; i += item_step()) {
    const Gradients<T> g = gradients(gate[i], up[i], dy[i], f);
    dgate[i] = g.gate, dup[i] = g.up;
  }
}

// Row-major tensors of one shape and of T.
template <class T, int bytes>
void forward(const Swiglu& op, Tensors in, Outputs y, Stream stream, int threads) {
  const auto run = [&]<int kPack>() {
    const int64_t n = y[0].numel();
    launch(forward_kernel<kPack, T>, blocks_for(ceil_div(n, kPack), threads),
           static_cast<unsigned>(threads), 0, stream, in[0].device_data<T>(),
           in[1].device_data<T>(), Gated<compute_t<T>>(op), y[0].device_data<T>(), n);
  };
  with_pack<bytes>(true, run, in[0].device_data<T>(), in[1].device_data<T>(),
                   y[0].device_data<T>());
}

template <class T, int bytes>
void backward(const SwigluBackward& op, Tensors in, Outputs y, Stream stream, int threads) {
  const auto run = [&]<int kPack>() {
    const int64_t n = y[0].numel();
    launch(backward_kernel<kPack, T>, blocks_for(ceil_div(n, kPack), threads),
           static_cast<unsigned>(threads), 0, stream, in[0].device_data<T>(),
           in[1].device_data<T>(), in[2].device_data<T>(), Gated<compute_t<T>>(op),
           y[0].device_data<T>(), y[1].device_data<T>(), n);
  };
  with_pack<bytes>(true, run, in[0].device_data<T>(), in[1].device_data<T>(),
                   in[2].device_data<T>(), y[0].device_data<T>(), y[1].device_data<T>());
}

}  // namespace tessera::op::swiglu_cuda
