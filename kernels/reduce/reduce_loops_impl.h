// SPDX-License-Identifier: Apache-2.0
// The CPU loops of the reduce family. Axes are merged and ordered by stride; the inner loop runs
// either along a reduced axis (lanes of partial results) or along a kept one (a block of outputs at
// once), whichever lies densely in memory. How the work is cut and shared among threads is compiled
// once, in reduce_loops.cpp; a reduction and its dtypes add only the inner loops.
#pragma once

#include "tessera/kernels/shared/simd_types_impl.h"

#include <algorithm>
#include <array>

namespace tessera {

/// One axis of an input: its stride there, and in the row-major output (0 where it is reduced).
struct ReduceAxis {
  int64_t size = 1, stride = 0, out = 0;
};

/// The axes without the inner one, and the inner one.
struct ReducePlan {
  std::array<ReduceAxis, kMaxRank> kept, reduced;
  int kept_count = 0, reduced_count = 0;
  ReduceAxis inner;
  bool inner_kept = false;
  int64_t kept_size = 1, reduced_size = 1;  // products, inner axis left out

  ReducePlan(const Tensor& x, uint32_t dims);

 private:
  void choose_inner();
};

/// Walks axes in row-major order, keeping the offsets in the input and in the output.
struct ReduceWalk {
  const std::array<ReduceAxis, kMaxRank>& axes;
  int count;
  std::array<int64_t, kMaxRank> index{};
  int64_t offset = 0, out = 0;

  ReduceWalk(const std::array<ReduceAxis, kMaxRank>& a, int n, int64_t flat) : axes(a), count(n) {
    for (int i = count - 1; i >= 0; --i) {
      const ReduceAxis& axis = axes[static_cast<size_t>(i)];
      const int64_t at = i == 0 ? flat : flat % axis.size;
      flat /= i == 0 ? 1 : axis.size;
      index[static_cast<size_t>(i)] = at;
      offset += at * axis.stride;
      out += at * axis.out;
    }
  }
  void next() {
    for (int i = count - 1; i >= 0; --i) {
      const ReduceAxis& axis = axes[static_cast<size_t>(i)];
      offset += axis.stride;
      out += axis.out;
      if (++index[static_cast<size_t>(i)] < axis.size || i == 0) return;
      index[static_cast<size_t>(i)] = 0;
      offset -= axis.size * axis.stride;
      out -= axis.size * axis.out;
    }
  }
};

namespace detail {

inline constexpr int64_t kReduceChunk = 32768;  // elements of one output reduced in one go

template <class A> inline constexpr int64_t kReduceLanes = 128 / static_cast<int64_t>(sizeof(A));

// Joins n elements of each of `rows` rows; lane j takes the elements j, j + kReduceLanes, ... of a
// row.
template <class P, class T, class A = typename P::A>
void reduce_run(const void* from, ReduceWalk& row, int64_t rows, int64_t n, int64_t stride,
                const void* by, void* result) {
  constexpr int64_t kLanes = kReduceLanes<A>;
  const T* base = static_cast<const T*>(from);
  const A shift = *static_cast<const A*>(by);
  // Strided reads gain nothing from wider instructions, so they are compiled once.
  const auto run = [&]<bool kUnit>() TESSERA_LAMBDA {
    A acc[kLanes];
    for (int64_t j = 0; j < kLanes; ++j) acc[j] = P::identity();
    for (int64_t r = 0; r < rows; ++r, row.next()) {
      const T* x = base + row.offset;
      int64_t i = 0;
      for (; i + kLanes <= n; i += kLanes) {
        for (int64_t j = 0; j < kLanes; ++j) {
          acc[j] =
              P::join(acc[j], P::map(static_cast<A>(x[kUnit ? i + j : (i + j) * stride]), shift));
        }
      }
      for (int64_t j = 0; j < n - i; ++j) {
        acc[j] =
            P::join(acc[j], P::map(static_cast<A>(x[kUnit ? i + j : (i + j) * stride]), shift));
      }
    }
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (int64_t j = 0; j < half; ++j) acc[j] = P::join(acc[j], acc[j + half]);
    }
    *static_cast<A*>(result) = acc[0];
  };
  if (stride == 1) simd_of<T>([&]() TESSERA_LAMBDA { run.template operator()<true>(); });
  else run.template operator()<false>();
}

// acc[j] joins column j of four rows.
template <class P, int kRows, class T, class A = typename P::A>
void reduce_rows(void* acc, const std::array<const void*, 4>& from, int64_t n, int64_t stride,
                 const void* by) {
  const auto run = [&]<bool kUnit>() TESSERA_LAMBDA {
    A* __restrict y = static_cast<A*>(acc);
    const T* const rows[]{static_cast<const T*>(from[0]), static_cast<const T*>(from[1]),
                          static_cast<const T*>(from[2]), static_cast<const T*>(from[3])};
    const A* shift = static_cast<const A*>(by);
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = kUnit ? j : j * stride;
      A v = P::map(static_cast<A>(rows[0][at]), shift[j]);
      if constexpr (kRows == 4) {
        const A w = P::join(v, P::map(static_cast<A>(rows[1][at]), shift[j]));
        v = P::join(w, P::join(P::map(static_cast<A>(rows[2][at]), shift[j]),
                               P::map(static_cast<A>(rows[3][at]), shift[j])));
      }
      y[j] = P::join(y[j], v);
    }
  };
  if (stride == 1) simd_of<T>([&]() TESSERA_LAMBDA { run.template operator()<true>(); });
  else run.template operator()<false>();
}

template <class P, class A = typename P::A> void reduce_identity(void* acc, int64_t n) {
  std::fill_n(static_cast<A*>(acc), n, P::identity());
}

template <class P, class A = typename P::A>
void reduce_join(void* acc, const void* more, int64_t n) {
  simd_of<A>([&]() TESSERA_LAMBDA {
    A* __restrict y = static_cast<A*>(acc);
    const A* x = static_cast<const A*>(more);
    const int64_t length = n;  // a copy, since y might be written over n as far as g++ knows
    for (int64_t j = 0; j < length; ++j) y[j] = P::join(y[j], x[j]);
  });
}

/// The inner loops of one reduction of one dtype.
struct ReduceKernel {
  int64_t item, result;  // bytes of an element of the input and of a result
  DType dtype;           // of results
  void (*identity)(void* acc, int64_t n);
  void (*join)(void* acc, const void* more, int64_t n);
  void (*run)(const void* from, ReduceWalk& row, int64_t rows, int64_t n, int64_t stride,
              const void* shift, void* result);
  void (*four_rows)(void* acc, const std::array<const void*, 4>& rows, int64_t n, int64_t stride,
                    const void* shift);
  void (*one_row)(void* acc, const std::array<const void*, 4>& rows, int64_t n, int64_t stride,
                  const void* shift);
};

template <class P, class T>
inline constexpr ReduceKernel kReduceKernel{
    sizeof(T),       sizeof(typename P::A), dtype_of<typename P::A>, &reduce_identity<P>,
    &reduce_join<P>, &reduce_run<P, T>,     &reduce_rows<P, 4, T>,   &reduce_rows<P, 1, T>};

/// Stores the results of the outputs [first, first + n).
using ReduceStore = void (*)(const void* store, int64_t first, const void* results, int64_t n);

void reduce_all(const Tensor& x, uint32_t dims, const ReduceKernel& kernel, const void* shift,
                ReduceStore store, const void* erased);

}  // namespace detail

/// Calls store(o, r) for each output o, where r joins P::map(x, shift[o]) over the reduced elements
/// of x. P: type A, and static identity(), map(A x, A shift), join(A, A). `shift` may be null
/// (zeros).
template <class P, class T, class Store>
void reduce_elements(const Tensor& x, uint32_t dims, const typename P::A* shift,
                     const Store& store) {
  const auto store_all = [](const void* erased, int64_t first, const void* results, int64_t n) {
    const Store& one = *static_cast<const Store*>(erased);
    const auto* r = static_cast<const typename P::A*>(results);
    for (int64_t i = 0; i < n; ++i) one(first + i, r[i]);
  };
  detail::reduce_all(x, dims, detail::kReduceKernel<P, T>, shift, store_all, &store);
}

}  // namespace tessera
