// SPDX-License-Identifier: Apache-2.0
// CUDA index_select and index_add. index_add sorts the places of its index by their values, equal
// ones in their order. One thread then sums an element of the result: without atomics, and it reads
// only the slices that it adds.
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/index_select/index_select.h"
#include "tessera/kernels/shared/block_reduce.cuh"
#include "tessera/kernels/shared/index_places.cuh"
#include "tessera/kernels/shared/pack.cuh"

namespace tessera::op {
namespace {

template <class T>
__global__ void select_kernel(const T* x, const int64_t* index, T* y, int64_t total, int64_t n,
                              int64_t m, int64_t inner) {
  for (int64_t i = first_item(); i < total; i += item_step()) {
    const int64_t row = i / inner, at = index[row % m];
    if (at >= 0 && at < n) y[i] = x[(row / m * n + at) * inner + i % inner];
    else if constexpr (is_floating(dtype_of<T>))
      y[i] = static_cast<T>(not_a_number<compute_t<T>>());
    else y[i] = T(0);
  }
}

struct SlicePointers {
  const int64_t* index;
  int64_t n;
  __device__ Pointer operator()(int64_t j) const {
    return {index[j] >= 0 && index[j] < n ? index[j] : -1, j};
  }
};

// starts[at]: how many keys are below `at`, found by bisection.
__global__ void find_starts(const uint64_t* sorted, int64_t* starts, int64_t m, int64_t n) {
  for (int64_t at = first_item(); at <= n; at += item_step()) {
    int64_t low = 0, high = m;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (sorted[middle] < static_cast<uint64_t>(at)) low = middle + 1;
      else high = middle;
    }
    starts[at] = low;
  }
}

// A thread sums kPack neighbours, narrow floats in f32. `x`: null if it is zero. (outer, n, inner)
// = (outer, n, inner) + some of (outer, m, inner).
template <class T, int kPack>
__global__ void add_kernel(const T* x, const T* src, T* y, const int64_t* places,
                           const int64_t* starts, int64_t items, int64_t n, int64_t m,
                           int64_t inner) {
  using C = compute_t<T>;
  constexpr int kAhead = 4;  // loads under way, for places that many point at
  const int64_t packs = inner / kPack;
  for (int64_t i = first_item(); i < items; i += item_step()) {
    const int64_t row = i / packs, column = (i - row * packs) * kPack;
    const int64_t outer = row / n, at = row - outer * n;
    const T* from = src + outer * m * inner + column;
    C sums[kPack] = {};
    const auto add = [&](const Pack<T, kPack>& more) {
#pragma unroll
      for (int e = 0; e < kPack; ++e) sums[e] += static_cast<C>(more.v[e]);
    };
    if (x) {
      const Pack<T, kPack> base = load_pack<kPack>(x + row * inner + column);
#pragma unroll
      for (int e = 0; e < kPack; ++e) sums[e] = static_cast<C>(base.v[e]);
    }
    each_place<kAhead>(
        places, starts[at], starts[at + 1],
        [&](int64_t place) { return load_pack<kPack>(from + place * inner); }, add);
    Pack<T, kPack> sum;
#pragma unroll
    for (int e = 0; e < kPack; ++e) sum.v[e] = static_cast<T>(sums[e]);
    store_pack(y + row * inner + column, sum);
  }
}

}  // namespace

void IndexSelect::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t total = y[0].numel();
  if (total == 0) return;
  const Tensor x = row_major(in[0], stream), index = row_major(in[1], stream);
  const DimView v(x.shape(), dim, name);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    launch(select_kernel<T>, blocks_for(total), kThreads, 0, stream, x.device_data<T>(),
           index.device_data<int64_t>(), y[0].device_data<T>(), total, v.n, index.numel(), v.inner);
  });
}

void IndexAdd::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  const bool given = in[0].defined();
  if (in[1].numel() == 0) {
    if (given) return copy_strided(in[0], y[0], stream);
    return Fill{y[0].shape(), y[0].dtype(), y[0].device(), 0}.cuda({}, y, stream);
  }
  const Tensor index = row_major(in[1], stream), src = row_major(in[2], stream),
               x = given ? row_major(in[0], stream) : Tensor();
  const DimView v(y[0].shape(), dim, name);
  const int64_t m = index.numel();
  const SortedPlaces sorted(name, SlicePointers{index.device_data<int64_t>(), v.n}, m, v.n,
                            index.device(), stream);
  const Tensor starts = empty({v.n + 1}, DType::i64, index.device());
  launch(find_starts, blocks_for(v.n + 1), kThreads, 0, stream, sorted.runs.keys,
         starts.device_data<int64_t>(), m, v.n);
  dispatch<dtypes>(src.dtype(), [&]<class T>() {
    const T *from = src.device_data<T>(), *base = given ? x.device_data<T>() : nullptr;
    T* to = y[0].device_data<T>();
    constexpr int kBytes = 16;
    with_pack<kBytes>(
        v.inner % kPackOf<T, kBytes> == 0,
        [&]<int kPack>() {
          const int64_t items = y[0].numel() / kPack;
          launch(add_kernel<T, kPack>, blocks_for(items), kThreads, 0, stream, base, from, to,
                 sorted.runs.places, starts.device_data<int64_t>(), items, v.n, m, v.inner);
        },
        static_cast<const T*>(to), from, base);
  });
}

}  // namespace tessera::op
