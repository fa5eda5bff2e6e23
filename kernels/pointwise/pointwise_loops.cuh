// SPDX-License-Identifier: Apache-2.0
// CUDA loops of the pointwise family. Row-major operands of one shape go four elements to a thread;
// everything else (broadcast, transposed, sliced) one element to a thread with its offsets computed
// from the merged strides.
#pragma once

#include "tessera/kernels/pointwise/pointwise_family.h"
#include "tessera/kernels/shared/loop_nest.cuh"
#include "tessera/kernels/shared/pack.cuh"

#include <type_traits>
#include <utility>

namespace tessera::op {

inline constexpr int kPack = 4;  // elements of a load

template <class Out, class Op, class... In>
__device__ __forceinline__ Out apply(const Op& op, In... x) {
  return static_cast<Out>(op.f(static_cast<compute_t<In>>(x)...));
}

template <class Out, class Op, class... In>
__device__ __forceinline__ Pack<Out, kPack> apply_pack(const Op& op, const Pack<In, kPack>&... x) {
  Pack<Out, kPack> y;
#pragma unroll
  for (int e = 0; e < kPack; ++e) y.v[e] = apply<Out>(op, x.v[e]...);
  return y;
}

template <class Op, class Out, class... In>
__global__ void map_flat(Op op, int64_t n, int64_t packs, Out* y, const In*... in) {
  for (int64_t i = first_item(); i < packs; i += item_step()) {
    store_pack(y + i * kPack, apply_pack<Out>(op, load_pack<kPack>(in + i * kPack)...));
  }
  for (int64_t i = packs * kPack + first_item(); i < n; i += item_step())
    y[i] = apply<Out>(op, in[i]...);
}

template <class Op, class Out, class... In, size_t... I>
__device__ __forceinline__ void apply_at(const Op& op, const int64_t (&at)[1 + sizeof...(In)],
                                         std::index_sequence<I...>, Out* y, const In*... in) {
  y[at[0]] = apply<Out>(op, in[at[1 + I]]...);
}

template <class Op, class Out, class... In>
__global__ void map_strided(Op op, int64_t n, DeviceNest<1 + sizeof...(In)> nest, Out* y,
                            const In*... in) {
  for (int64_t i = first_item(); i < n; i += item_step()) {
    int64_t at[1 + sizeof...(In)];
    nest.offsets(i, at);
    apply_at(op, at, std::index_sequence_for<In...>{}, y, in...);
  }
}

// y = op.f(in...) of row-major operands of one shape and these element types.
template <class Out, class... In, class Op>
void launch_flat(const Op& op, const Tensor& y, Tensors in, Stream stream) {
  const int64_t n = y.numel();
  if (n == 0) return;
  [&]<size_t... I>(std::index_sequence<I...>) {
    Out* out = static_cast<Out*>(y.raw_device_data());
    const bool packed = aligned<kPack>(out, static_cast<const In*>(in[I].raw_device_data())...);
    launch(map_flat<Op, Out, In...>, blocks_for(packed ? ceil_div(n, kPack) : n), kThreads, 0,
           stream, op, n, packed ? n / kPack : 0, out,
           static_cast<const In*>(in[I].raw_device_data())...);
  }
  (std::index_sequence_for<In...>{});
}

// The same of any operands that broadcast to y's shape.
template <class Out, class... In, class Op>
void launch_strided(const Op& op, const Tensor& y, Tensors in, Stream stream) {
  const int64_t n = y.numel();
  if (n == 0) return;
  [&]<size_t... I>(std::index_sequence<I...>) {
    const LoopNest<1 + sizeof...(In)> nest(y.shape(), {&y, &in[I]...});
    launch(map_strided<Op, Out, In...>, blocks_for(n), kThreads, 0, stream, op, n,
           DeviceNest<1 + sizeof...(In)>(nest), static_cast<Out*>(y.raw_device_data()),
           static_cast<const In*>(in[I].raw_device_data())...);
  }
  (std::index_sequence_for<In...>{});
}

inline bool flat(const Tensor& y, Tensors in) {
  bool same = y.is_contiguous();
  for (const Tensor& x : in) same = same && x.is_contiguous() && x.shape() == y.shape();
  return same;
}

// Unary ops and fused gradients copy a strided input first, ops with bool operands always compute
// offsets: fewer kernels to compile.
template <class Op, int N> void Pointwise<Op, N>::cuda(Tensors in, Outputs y, Stream stream) const {
  const Op& self = static_cast<const Op&>(*this);
  dispatch<Op::dtypes>(in[Op::kBoolInput == 0 ? 1 : 0].dtype(), [&]<class T>() {
    using Out = std::conditional_t<Op::kBoolOutput, bool, T>;
    [&]<size_t... I>(std::index_sequence<I...>) {
      constexpr bool kSame = N == 1 || requires { Op::kSameShape; };
      if constexpr (kSame) {
        const Tensor rows[] = {row_major(in[I], stream)...};
        launch_flat<Out, std::conditional_t<static_cast<int>(I) == Op::kBoolInput, bool, T>...>(
            self, y[0], Tensors(rows, N), stream);
      } else if constexpr (!Op::kBoolOutput && Op::kBoolInput < 0) {
        if (flat(y[0], in))
          launch_flat < Out, std::conditional_t<I<N, T, T>...>(self, y[0], in, stream);
        else launch_strided < Out, std::conditional_t<I<N, T, T>...>(self, y[0], in, stream);
      } else {
        launch_strided<Out, std::conditional_t<static_cast<int>(I) == Op::kBoolInput, bool, T>...>(
            self, y[0], in, stream);
      }
    }
    (std::make_index_sequence<N>{});
  });
}

/// Instantiates the family for every op of a list.
template <class List> struct InstantiateOnCuda;
template <class... Ops> struct InstantiateOnCuda<OpList<Ops...>> {
  static auto all() { return std::tuple{&Ops::cuda...}; }
};

}  // namespace tessera::op
