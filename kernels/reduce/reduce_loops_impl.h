// SPDX-License-Identifier: Apache-2.0
// The CPU loops of the reduce family. Axes are merged and ordered by stride; the inner loop runs
// either along a reduced axis (lanes of partial results) or along a kept one (a block of outputs at
// once), whichever lies densely in memory. Long reductions are cut into chunks that depend on the
// shape alone, so the thread count does not change a bit.
#pragma once

#include "tessera/kernels/simd_types_impl.h"

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

  ReducePlan(const Tensor& x, uint32_t dims) {
    int64_t out = 1;
    std::array<int64_t, kMaxRank> out_strides{};
    for (int d = x.rank() - 1; d >= 0; --d) {
      if (dims >> d & 1) continue;
      out_strides[static_cast<size_t>(d)] = out;
      out *= x.shape()[d];
    }
    for (int d = 0; d < x.rank(); ++d) {
      if (x.shape()[d] == 1) continue;
      const ReduceAxis a{x.shape()[d], x.strides()[d], out_strides[static_cast<size_t>(d)]};
      if (dims >> d & 1) insert_by_stride(a);
      else append(kept, kept_count, a);
    }
    for (int i = 0, n = std::exchange(reduced_count, 0); i < n; ++i)
      append(reduced, reduced_count, reduced[static_cast<size_t>(i)]);
    choose_inner();
    for (int i = 0; i < kept_count; ++i) kept_size *= kept[static_cast<size_t>(i)].size;
    for (int i = 0; i < reduced_count; ++i) reduced_size *= reduced[static_cast<size_t>(i)].size;
  }

 private:
  using Axes = std::array<ReduceAxis, kMaxRank>;
  // The order of reduction is free, so the densest axis comes last.
  void insert_by_stride(const ReduceAxis& a) {
    int i = reduced_count++;
    for (; i > 0 && reduced[static_cast<size_t>(i - 1)].stride < a.stride; --i)
      reduced[static_cast<size_t>(i)] = reduced[static_cast<size_t>(i - 1)];
    reduced[static_cast<size_t>(i)] = a;
  }
  static void append(Axes& axes, int& count, const ReduceAxis& a) {
    if (count > 0) {
      ReduceAxis& last = axes[static_cast<size_t>(count - 1)];
      if (last.stride == a.stride * a.size && last.out == a.out * a.size) {
        last = {last.size * a.size, a.stride, a.out};
        return;
      }
    }
    axes[static_cast<size_t>(count++)] = a;
  }
  void choose_inner() {
    // An expanded axis (stride 0) reads one element over and over: the last choice.
    const auto sparsity = [](const ReduceAxis& a) { return a.stride == 0 ? INT64_MAX : a.stride; };
    const auto densest = [&](const Axes& axes, int count) {
      int best = -1;
      for (int i = 0; i < count; ++i) {
        if (best < 0 ||
            sparsity(axes[static_cast<size_t>(i)]) <= sparsity(axes[static_cast<size_t>(best)]))
          best = i;
      }
      return best;
    };
    const int k = densest(kept, kept_count), r = densest(reduced, reduced_count);
    if (k < 0 && r < 0) return;
    // A short dense axis loses to a long one of the other kind: the loop's start would cost more
    // than its strides.
    if (k < 0 || r < 0) {
      inner_kept = r < 0;
    } else {
      const int64_t long_enough = 16;
      const ReduceAxis &a = kept[static_cast<size_t>(k)], &b = reduced[static_cast<size_t>(r)];
      inner_kept = sparsity(a) < sparsity(b);
      if (inner_kept && a.size < long_enough && b.size >= 4 * long_enough) inner_kept = false;
      else if (!inner_kept && b.size < long_enough && a.size >= 4 * long_enough) inner_kept = true;
    }
    inner = inner_kept ? take(kept, kept_count, k) : take(reduced, reduced_count, r);
  }
  static ReduceAxis take(Axes& axes, int& count, int at) {
    const ReduceAxis a = axes[static_cast<size_t>(at)];
    for (int i = at + 1; i < count; ++i)
      axes[static_cast<size_t>(i - 1)] = axes[static_cast<size_t>(i)];
    --count;
    return a;
  }
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
inline constexpr int64_t kReduceColumns = 1024;

template <class A> inline constexpr int64_t kReduceLanes = 128 / static_cast<int64_t>(sizeof(A));

// Joins n elements of each of `rows` rows; lane j takes the elements j, j + kReduceLanes, ... of a
// row.
template <class P, class T, class A = typename P::A>
A reduce_run(const T* base, ReduceWalk& row, int64_t rows, int64_t n, int64_t stride, A shift) {
  constexpr int64_t kLanes = kReduceLanes<A>;
  A result;
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
    result = acc[0];
  };
  if (stride == 1) simd_of<T>([&]() TESSERA_LAMBDA { run.template operator()<true>(); });
  else run.template operator()<false>();
  return result;
}

// acc[j] joins column j of four rows.
template <class P, int kRows, class T, class A = typename P::A>
void reduce_rows(A* acc, const std::array<const T*, 4>& rows, int64_t n, int64_t stride,
                 const A* shift) {
  const auto run = [&]<bool kUnit>() TESSERA_LAMBDA {
    A* __restrict y = acc;
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

// Partial results of several chunks, (chunks, outputs): joined in order and stored.
template <class P, class Store, class A = typename P::A>
void join_chunks(const A* partial, int64_t chunks, int64_t outputs, const Store& store) {
  parallel_for(outputs, std::max<int64_t>(1, kReduceChunk / chunks),
               [&](int64_t begin, int64_t end) {
                 A acc[kReduceColumns];
                 for (int64_t o = begin; o < end; o += kReduceColumns) {
                   const int64_t n = std::min(kReduceColumns, end - o);
                   std::copy_n(partial + o, n, acc);
                   simd_of<A>([&]() TESSERA_LAMBDA {
                     for (int64_t c = 1; c < chunks; ++c) {
                       const A* more = partial + c * outputs + o;
                       for (int64_t j = 0; j < n; ++j) acc[j] = P::join(acc[j], more[j]);
                     }
                   });
                   for (int64_t j = 0; j < n; ++j) store(o + j, acc[j]);
                 }
               });
}

}  // namespace detail

/// Calls store(o, r) for each output o, where r joins P::map(x, shift[o]) over the reduced elements
/// of x. P: type A, and static identity(), map(A x, A shift), join(A, A). `shift` may be null
/// (zeros).
template <class P, class T, class Store>
void reduce_elements(const Tensor& x, uint32_t dims, const typename P::A* shift,
                     const Store& store) {
  using namespace detail;
  using A = typename P::A;
  int64_t outputs = 1;
  for (int d = 0; d < x.rank(); ++d) outputs *= dims >> d & 1 ? 1 : x.shape()[d];
  if (x.numel() == 0) {
    for (int64_t o = 0; o < outputs; ++o) store(o, P::identity());
    return;
  }
  const ReducePlan plan(x, dims);
  const T* from = static_cast<const T*>(x.raw_data());  // bools are reduced as bytes
  const int64_t n = plan.inner.size, stride = plan.inner.stride, rows = plan.reduced_size;
  // A chunk is a range of rows, or of the inner axis where it is the only reduced one.
  const bool cut_inner = !plan.inner_kept && rows == 1;
  const int64_t length = cut_inner ? n : rows;
  const int64_t width = plan.inner_kept ? std::min(n, kReduceColumns) : (cut_inner ? 1 : n);
  const int64_t per_chunk = std::max<int64_t>(plan.inner_kept ? 64 : 1, kReduceChunk / width);
  const int64_t chunks = (length + per_chunk - 1) / per_chunk;
  Tensor buffer;
  A* partial = nullptr;
  if (chunks > 1) {
    buffer = empty({chunks, outputs}, dtype_of<A>);
    partial = buffer.data<A>();
  }
  if (!plan.inner_kept && chunks == 1) {
    parallel_for(plan.kept_size, std::max<int64_t>(1, kReduceChunk / 2 / (rows * n)),
                 [&](int64_t begin, int64_t end) {
                   ReduceWalk at(plan.kept, plan.kept_count, begin);
                   for (int64_t k = begin; k < end; ++k, at.next()) {
                     ReduceWalk row(plan.reduced, plan.reduced_count, 0);
                     const A by = shift ? shift[at.out] : A(0);
                     store(at.out, reduce_run<P>(from + at.offset, row, rows, n, stride, by));
                   }
                 });
    return;
  }
  const int64_t blocks = plan.inner_kept ? (n + kReduceColumns - 1) / kReduceColumns : 1;
  const int64_t work = std::min(length, per_chunk) * width;
  parallel_for(
      plan.kept_size * blocks * chunks, std::max<int64_t>(1, kReduceChunk / 2 / work),
      [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
          const int64_t chunk = task % chunks, block = task / chunks % blocks;
          const int64_t first = chunk * per_chunk, count = std::min(length - first, per_chunk);
          const ReduceWalk at(plan.kept, plan.kept_count, task / chunks / blocks);
          ReduceWalk row(plan.reduced, plan.reduced_count, cut_inner ? 0 : first);
          if (plan.inner_kept) {
            const int64_t column = block * kReduceColumns,
                          columns = std::min(n - column, kReduceColumns);
            const int64_t out = at.out + column * plan.inner.out;
            A acc[kReduceColumns], by[kReduceColumns];
            std::fill_n(acc, columns, P::identity());
            std::fill_n(by, columns, A(0));
            for (int64_t j = 0; shift && j < columns; ++j) by[j] = shift[out + j * plan.inner.out];
            const T* base = from + at.offset + column * stride;
            for (int64_t r = 0; r < count;) {
              const int take = count - r >= 4 ? 4 : 1;
              std::array<const T*, 4> p{};
              for (int i = 0; i < take; ++i, row.next())
                p[static_cast<size_t>(i)] = base + row.offset;
              take == 4 ? reduce_rows<P, 4>(acc, p, columns, stride, by)
                        : reduce_rows<P, 1>(acc, p, columns, stride, by);
              r += take;
            }
            if (partial && plan.inner.out == 1) {
              std::copy_n(acc, columns, partial + chunk * outputs + out);
              continue;
            }
            for (int64_t j = 0; j < columns; ++j) {
              const int64_t o = out + j * plan.inner.out;
              if (partial) partial[chunk * outputs + o] = acc[j];
              else store(o, acc[j]);
            }
          } else {
            const int64_t start = cut_inner ? first * stride : 0;
            const A r = reduce_run<P>(from + at.offset + start, row, cut_inner ? 1 : count,
                                      cut_inner ? count : n, stride, shift ? shift[at.out] : A(0));
            if (partial) partial[chunk * outputs + at.out] = r;
            else store(at.out, r);
          }
        }
      });
  if (partial) join_chunks<P>(partial, chunks, outputs, store);
}

}  // namespace tessera
