// SPDX-License-Identifier: Apache-2.0
// The CPU loops of the pointwise family. How rows are found and shared among threads is compiled
// once, in pointwise_loops.cpp; an op and its dtypes add only the loop over one row: for strides of
// 1, for a broadcast scalar, and for anything else. In long ops of one input bf16 goes through the
// loop of f32, block by block. Where an op has arguments that its f does not cover (`rare`), a
// second look at the row gives these to `exact`.
#pragma once

#include "tessera/kernels/shared/simd_types_impl.h"

#include <algorithm>
#include <array>
#include <tuple>

namespace tessera {

/// n elements of a row: out[i] = op(in[0][i], in[1][i], ...) with strides in elements, the output's
/// first.
using RowLoop = void (*)(const void* op, int64_t n, void* out, const void* const* in,
                         const int64_t* stride);

/// Runs `loop` over all rows of y and the inputs broadcast to it.
void for_each_row_of(const Tensor& y, Tensors in, RowLoop loop, const void* op);

namespace detail {

/// bf16 to f32 and back, rounded. The f32 values lie in an order of their own, which depends on n
/// alone: vectors of pairs are taken apart and joined with fewer instructions than they are spread.
void widen_pairs(const bf16* x, int64_t n, float* y);
void narrow_pairs(const float* x, int64_t n, bf16* y);
inline constexpr int64_t kWidened = 1024, kFetched = 256;  // elements in one go

/// An op of so many steps that bf16 is faster so; with a few, or two inputs, the detour costs more
/// than it saves.
template <class Op> inline constexpr bool kIsLong = false;
template <class Op>
requires requires { Op::kLong; }
inline constexpr bool kIsLong<Op> = Op::kLong;

template <class Op, class Out, class... In> struct TypedRow {
  static constexpr size_t kInputs = sizeof...(In);
  static constexpr bool kHasRare = requires(const Op& op, compute_t<In>... x) { op.rare(x...); };
  static constexpr bool kBroadcasts = !requires { Op::kSameShape; };
  static constexpr bool kWidens =
      kIsLong<Op> && kInputs == 1 && std::is_same_v<Out, bf16> && (std::is_same_v<In, bf16> && ...);

  static Out one(const Op& op, compute_t<In>... x) {
    if constexpr (kHasRare) {
      if (op.rare(x...)) return static_cast<Out>(op.exact(x...));
    }
    return static_cast<Out>(op.f(x...));
  }

  // Apart from `one`, so that it vectorises where `exact` does.
  template <bool... kBroadcast, size_t... I>
  TESSERA_INLINE static void mend(const Op& op, int64_t n, Out* y, std::tuple<const In*...> in,
                                  std::index_sequence<I...>) {
    for (int64_t i = 0; i < n; ++i) {
      y[i] = op.rare(static_cast<compute_t<In>>(std::get<I>(in)[kBroadcast ? 0 : i])...)
                 ? static_cast<Out>(
                       op.exact(static_cast<compute_t<In>>(std::get<I>(in)[kBroadcast ? 0 : i])...))
                 : y[i];
    }
  }

  template <bool... kBroadcast, size_t... I>
  static void unit(const Op& op, int64_t n, Out* out, std::tuple<const In*...> in,
                   std::index_sequence<I...>) {
    simd_of<Out, In...>([&]() TESSERA_LAMBDA {
      const Op f = op;
      Out* __restrict y = out;
      [[maybe_unused]] int any = 0;
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) {
        y[i] = static_cast<Out>(
            f.f(static_cast<compute_t<In>>(std::get<I>(in)[kBroadcast ? 0 : i])...));
        if constexpr (kHasRare)
          any |= f.rare(static_cast<compute_t<In>>(std::get<I>(in)[kBroadcast ? 0 : i])...);
      }
      if constexpr (kHasRare) {
        if (any) mend<kBroadcast...>(f, n, out, in, std::index_sequence<I...>{});
      }
    });
  }

  static void widened(const Op& op, int64_t n, bf16* y, const bf16* x) {
    alignas(64) std::array<float, kWidened> in, out;
    for (int64_t at = 0; at < n; at += kWidened) {
      const int64_t count = std::min(kWidened, n - at);
      widen_pairs(x + at, count, in.data());
      // f waits for no memory, so meanwhile what the other two want is fetched, a little at a time.
      for (int64_t part = 0; part < count; part += kFetched) {
        const int64_t size = std::min(kFetched, count - part);
        for (int64_t i = part; i < part + size; i += 64 / static_cast<int64_t>(sizeof(bf16))) {
          __builtin_prefetch(x + at + kWidened + i);
          __builtin_prefetch(y + at + i, 1);
        }
        TypedRow<Op, float, float>::template unit<false>(
            op, size, out.data() + part, {in.data() + part}, std::index_sequence<0>{});
      }
      narrow_pairs(out.data(), count, y + at);
    }
  }

  template <size_t... I>
  static void any(const Op& op, int64_t n, Out* out, std::tuple<const In*...> in,
                  const int64_t* stride, std::index_sequence<I...>) {
    for (int64_t i = 0; i < n; ++i) {
      out[i * stride[0]] =
          one(op, static_cast<compute_t<In>>(std::get<I>(in)[i * stride[1 + I]])...);
    }
  }

  static void run(const void* erased, int64_t n, void* out, const void* const* in,
                  const int64_t* stride) {
    const Op& op = *static_cast<const Op*>(erased);
    [&]<size_t... I>(std::index_sequence<I...> all) {
      const std::tuple<const In*...> pointers{static_cast<const In*>(in[I])...};
      Out* y = static_cast<Out*>(out);
      if (n == 1 || (stride[0] == 1 && ((stride[1 + I] == 1) && ...))) {
        if constexpr (kWidens) return widened(op, n, y, std::get<I>(pointers)...);
        else return unit<((void)I, false)...>(op, n, y, pointers, all);
      }
      if constexpr (kInputs == 2 && kBroadcasts && kWorthSimd<Out>) {
        if (stride[0] == 1 && stride[1] == 1 && stride[2] == 0)
          return unit<false, true>(op, n, y, pointers, all);
        if (stride[0] == 1 && stride[1] == 0 && stride[2] == 1)
          return unit<true, false>(op, n, y, pointers, all);
      }
      any(op, n, y, pointers, stride, all);
    }
    (std::index_sequence_for<In...>{});
  }
};

}  // namespace detail

/// y[i] = op.f(in[i]...) for tensors of these element types.
template <class Out, class... In, class Op>
void map_elements(const Op& op, const Tensor& y, Tensors in) {
  for_each_row_of(y, in, &detail::TypedRow<Op, Out, In...>::run, &op);
}

}  // namespace tessera
