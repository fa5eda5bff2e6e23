// SPDX-License-Identifier: Apache-2.0
// Rows for kernels that work along one dim: where each row lies, per-thread scratch in the compute
// type, and sums and maxima over a row in a fixed order of lanes. A row is loaded once, so every
// dtype and stride costs the same code.
#pragma once

#include "tessera/core/parallel.h"
#include "tessera/kernels/products/micro_gemm_impl.h"

#include <omp.h>
#include <type_traits>
#include <utility>

namespace tessera {

/// The rows of a tensor along `dim`: row r starts at element offset(r) and steps by `stride`.
struct Rows {
  int64_t count = 1, n = 1, stride = 1;
  Shape shape, strides;  // of the other dims

  Rows(const Tensor& x, int dim) {
    if (x.rank() == 0) return;
    n = x.shape()[dim];
    stride = x.strides()[dim];
    shape = x.shape().without(dim);
    strides = x.strides().without(dim);
    count = shape.numel();
    packed_ =
        is_contiguous(shape, contiguous_strides(shape)) && dim == x.rank() - 1 && x.is_contiguous();
  }
  [[nodiscard]] int64_t offset(int64_t row) const {
    if (packed_) return row * n;
    int64_t at = 0;
    for (int d = shape.rank() - 1; d >= 0; --d) {
      at += row % shape[d] * strides[d];
      row /= shape[d];
    }
    return at;
  }

 private:
  bool packed_ = false;
};

/// Runs f(row, scratch, padded) for every row, where scratch holds `buffers` arrays of n elements
/// of C, 64-byte aligned, `padded` elements apart. A row is as much work as `work` elements.
template <class C, class F>
void for_each_row(int64_t rows, int64_t work, int64_t n, int64_t buffers, F&& f) {
  const int64_t padded = micro::round_up(std::max<int64_t>(n, 1), micro::kLanes<C>);
  // As many as parallel_for starts. A rank may itself be a thread of a team, with a number beyond
  // its own threads.
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(work, 1));
  const int threads = static_cast<int>(
      std::clamp<int64_t>((rows + grain - 1) / grain, 1, Context::current().options.threads));
  const Tensor scratch = empty({threads, buffers, padded}, dtype_of<C>);
  C* all = scratch.data<C>();
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    C* mine = all + omp_get_thread_num() % threads * buffers * padded;
    for (int64_t row = begin; row < end; ++row) f(row, mine, padded);
  });
}
/// The same for rows of n elements.
template <class C, class F> void for_each_row(int64_t rows, int64_t n, int64_t buffers, F&& f) {
  for_each_row<C>(rows, n, n, buffers, f);
}

namespace rows {

template <class C, class T>
TESSERA_INLINE void load(const T* from, int64_t stride, int64_t n, C* __restrict to) {
  if (stride == 1) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<C>(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<C>(from[i * stride]);
  }
}
/// A row in the compute type: where it lies, if it does, else loaded into `buffer`.
template <class C, class T>
TESSERA_INLINE const C* read(const T* from, int64_t stride, int64_t n, C* buffer) {
  if constexpr (std::is_same_v<C, T>) {
    if (stride == 1) return from;
  }
  load(from, stride, n, buffer);
  return buffer;
}
/// f(i) for each element of a row of n.
template <class T, class F> TESSERA_INLINE void store_each(int64_t n, T* to, int64_t stride, F f) {
  if (stride == 1) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(f(i));
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * stride] = static_cast<T>(f(i));
  }
}
template <class C, class T>
TESSERA_INLINE void store(const C* __restrict from, int64_t n, T* to, int64_t stride) {
  store_each(n, to, stride, [from](int64_t i) TESSERA_LAMBDA { return from[i]; });
}

template <class C, class V, class F, size_t... I>
TESSERA_INLINE C fold_halves(const V& v, F f, std::index_sequence<I...>) {
  constexpr size_t kHalf = sizeof...(I);
  const auto joined =
      f(__builtin_shufflevector(v, v, I...), __builtin_shufflevector(v, v, (I + kHalf)...));
  if constexpr (kHalf == 2) return f(joined[0], joined[1]);
  else return fold_halves<C>(joined, f, std::make_index_sequence<kHalf / 2>{});
}
/// The lower half of the lanes joined with the upper one, until one lane is left; in registers, so
/// f takes vectors, too.
template <class C, class F> TESSERA_INLINE C fold_lanes(const micro::Lanes<C>& v, F f) {
  return fold_halves<C>(v, f, std::make_index_sequence<micro::kLanes<C> / 2>{});
}

template <class C> TESSERA_INLINE C sum(const C* x, int64_t n) {
  micro::Lanes<C> a{}, b{};
  constexpr int64_t kStep = micro::kLanes<C>;
  int64_t i = 0;
  for (; i + 2 * kStep <= n; i += 2 * kStep) {
    a += micro::load(x + i);
    b += micro::load(x + i + kStep);
  }
  for (; i + kStep <= n; i += kStep) a += micro::load(x + i);
  a += b;
  C total = fold_lanes<C>(a, [](auto p, auto q) TESSERA_LAMBDA { return p + q; });
  for (; i < n; ++i) total += x[i];
  return total;
}

template <class C> TESSERA_INLINE C dot(const C* x, const C* y, int64_t n) {
  micro::Lanes<C> a{}, b{};
  constexpr int64_t kStep = micro::kLanes<C>;
  int64_t i = 0;
  for (; i + 2 * kStep <= n; i += 2 * kStep) {
    a += micro::load(x + i) * micro::load(y + i);
    b += micro::load(x + i + kStep) * micro::load(y + i + kStep);
  }
  for (; i + kStep <= n; i += kStep) a += micro::load(x + i) * micro::load(y + i);
  a += b;
  C total = fold_lanes<C>(a, [](auto p, auto q) TESSERA_LAMBDA { return p + q; });
  for (; i < n; ++i) total += x[i] * y[i];
  return total;
}

/// dot in f64, in sixteen sums that take turns.
template <class C> TESSERA_INLINE double wide_dot(const C* x, const C* y, int64_t n) {
  double part[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int64_t j = 0; j < 16; ++j)
      part[j] += static_cast<double>(x[i + j]) * static_cast<double>(y[i + j]);
  }
  for (; i < n; ++i) part[i % 16] += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  double total = 0;
  for (double p : part) total += p;
  return total;
}

/// Largest element; NaN is passed over. -inf of nothing.
template <class C> TESSERA_INLINE C max(const C* x, int64_t n) {
  constexpr int64_t kStep = micro::kLanes<C>;
  C top = -std::numeric_limits<C>::infinity();
  int64_t i = 0;
  if (n >= kStep) {
    micro::Lanes<C> a = micro::load(x);
    for (i = kStep; i + kStep <= n; i += kStep) {
      const micro::Lanes<C> b = micro::load(x + i);
      a = b > a ? b : a;
    }
    top = fold_lanes<C>(a, [](auto p, auto q) TESSERA_LAMBDA { return q > p ? q : p; });
  }
  for (; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

}  // namespace rows
}  // namespace tessera
