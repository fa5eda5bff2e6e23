// SPDX-License-Identifier: Apache-2.0
// CUDA loops of the pointwise family. Row-major operands of one shape go four elements to a thread;
// everything else (broadcast, transposed, sliced) one element to a thread with its offsets computed
// from the merged strides.
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/strided.cuh"

#include <utility>

namespace tessera::op {
namespace {

constexpr int kPack = 4;
template <class T> struct alignas(sizeof(T) * kPack) Pack { T v[kPack]; };

template <class Out, class Op, class... In>
__device__ __forceinline__ Out apply(const Op& op, In... x) {
  return static_cast<Out>(op.f(static_cast<compute_t<In>>(x)...));
}

template <class Out, class Op, class... In>
__device__ __forceinline__ Pack<Out> apply_pack(const Op& op, const Pack<In>&... x) {
  Pack<Out> y;
#pragma unroll
  for (int e = 0; e < kPack; ++e) y.v[e] = apply<Out>(op, x.v[e]...);
  return y;
}

template <class Op, class Out, class... In>
__global__ void map_flat(Op op, int64_t n, int64_t packs, Out* y, const In*... in) {
  for (int64_t i = first_item(); i < packs; i += item_step()) {
    reinterpret_cast<Pack<Out>*>(y)[i] =
        apply_pack<Out>(op, reinterpret_cast<const Pack<In>*>(in)[i]...);
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

template <class T> bool aligned(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % (sizeof(T) * kPack) == 0;
}

// y = op.f(in...) of row-major operands of one shape and these element types.
template <class Out, class... In, class Op>
void launch_flat(std::string_view name, const Op& op, const Tensor& y, Tensors in, Stream stream) {
  const int64_t n = y.numel();
  if (n == 0) return;
  [&]<size_t... I>(std::index_sequence<I...>) {
    Out* out = static_cast<Out*>(y.raw_data());
    const bool packed = aligned(out) && (aligned(static_cast<const In*>(in[I].raw_data())) && ...);
    map_flat<<<blocks_for(packed ? ceil_div(n, kPack) : n), kThreads, 0, handle(stream)>>>(
        op, n, packed ? n / kPack : 0, out, static_cast<const In*>(in[I].raw_data())...);
  }
  (std::index_sequence_for<In...>{});
  check_launch(name);
}

// The same of any operands that broadcast to y's shape.
template <class Out, class... In, class Op>
void launch_strided(std::string_view name, const Op& op, const Tensor& y, Tensors in,
                    Stream stream) {
  const int64_t n = y.numel();
  if (n == 0) return;
  [&]<size_t... I>(std::index_sequence<I...>) {
    const LoopNest<1 + sizeof...(In)> nest(y.shape(), {&y, &in[I]...});
    map_strided<<<blocks_for(n), kThreads, 0, handle(stream)>>>(
        op, n, DeviceNest<1 + sizeof...(In)>(nest), static_cast<Out*>(y.raw_data()),
        static_cast<const In*>(in[I].raw_data())...);
  }
  (std::index_sequence_for<In...>{});
  check_launch(name);
}

bool flat(const Tensor& y, Tensors in) {
  bool same = y.is_contiguous();
  for (const Tensor& x : in) same = same && x.is_contiguous() && x.shape() == y.shape();
  return same;
}

template <class To, class From> struct Convert {
  __device__ __forceinline__ To f(compute_t<From> x) const {
    if constexpr (is_floating(dtype_of<To>) && sizeof(To) < 4) return To(static_cast<float>(x));
    else return static_cast<To>(x);
  }
};

struct CopyBits {
  template <class T> __device__ __forceinline__ T f(T x) const { return x; }
};

// A copy moves bits: four element sizes instead of ten dtypes.
template <class Bits> void copy_bits(const Tensor& x, const Tensor& y, Stream stream) {
  const Tensors in(&x, 1);
  if (flat(y, in)) launch_flat<Bits, Bits>(Copy::name, CopyBits{}, y, in, stream);
  else launch_strided<Bits, Bits>(Copy::name, CopyBits{}, y, in, stream);
}

// f32 lies between any dtype and a narrow float without changing the result, so those pairs need no
// kernel of their own.
constexpr bool narrow(DType t) { return is_floating(t) && item_size(t) < 4; }
constexpr bool direct(DType from, DType to) {
  return (!narrow(from) && !narrow(to)) || from == DType::f32 || to == DType::f32;
}

void convert(const Tensor& x, const Tensor& y, Stream stream) {
  if (!direct(x.dtype(), y.dtype())) {
    const Tensor between = empty(x.shape(), DType::f32, x.device());
    convert(x, between, stream);
    convert(between, y, stream);
    return;
  }
  dispatch<kAllDTypes>(x.dtype(), [&]<class From>() {
    dispatch<kAllDTypes>(y.dtype(), [&]<class To>() {
      if constexpr (direct(dtype_of<From>, dtype_of<To>)) {
        launch_flat<To, From>(Cast::name, Convert<To, From>{}, y, Tensors(&x, 1), stream);
      }
    });
  });
}

}  // namespace
}  // namespace tessera::op

namespace tessera {

void copy_strided(const Tensor& x, const Tensor& y, Stream stream) {
  switch (item_size(y.dtype())) {
    case 1: return op::copy_bits<uint8_t>(x, y, stream);
    case 2: return op::copy_bits<uint16_t>(x, y, stream);
    case 4: return op::copy_bits<uint32_t>(x, y, stream);
    default: return op::copy_bits<uint64_t>(x, y, stream);
  }
}

namespace op {

template <> void Pointwise<Copy, 1>::cuda(Tensors in, Outputs y, Stream stream) const {
  copy_strided(in[0], y[0], stream);
}

// Unary ops copy a strided input first, comparisons and where always compute offsets: fewer kernels
// to compile.
template <class Op, int N> void Pointwise<Op, N>::cuda(Tensors in, Outputs y, Stream stream) const {
  const Op& self = static_cast<const Op&>(*this);
  dispatch<Op::dtypes>(in[N - 1].dtype(), [&]<class T>() {
    if constexpr (N == 1) {
      const Tensor x = row_major(in[0], stream);
      launch_flat<T, T>(Op::name, self, y[0], Tensors(&x, 1), stream);
    } else if constexpr (N == 2 && Op::kBoolOutput) {
      launch_strided<bool, T, T>(Op::name, self, y[0], in, stream);
    } else if constexpr (N == 2) {
      if (flat(y[0], in)) launch_flat<T, T, T>(Op::name, self, y[0], in, stream);
      else launch_strided<T, T, T>(Op::name, self, y[0], in, stream);
    } else {
      launch_strided<T, bool, T, T>(Op::name, self, y[0], in, stream);
    }
  });
}

void Cast::cuda(Tensors in, Outputs y, Stream stream) const {
  convert(row_major(in[0], stream), y[0], stream);
}

// Instantiates the family for every op of the list, so that the list is the only place that names
// them.
template <class List> struct Instantiate;
template <class... Ops> struct Instantiate<OpList<Ops...>> {
  static auto all() { return std::tuple{&Ops::cuda...}; }
};
template struct Instantiate<pointwise_ops>;

}  // namespace op
}  // namespace tessera
