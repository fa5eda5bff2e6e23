// SPDX-License-Identifier: Apache-2.0
// CUDA index_select and index_add. index_add sorts the places of its index by their values, equal
// ones in their order. One thread then sums an element of the result: without atomics, and it reads
// only the slices that it adds.
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/index_select/index_select.h"
#include "tessera/kernels/shared/block_reduce.cuh"
#include "tessera/kernels/shared/pack.cuh"

#include <cub/device/device_radix_sort.cuh>

#include <bit>

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

// A place that points outside [0, n) comes last.
__global__ void make_keys(const int64_t* index, uint64_t* keys, int64_t* places, int64_t m,
                          int64_t n) {
  for (int64_t j = first_item(); j < m; j += item_step()) {
    const int64_t at = index[j];
    keys[j] = static_cast<uint64_t>(at >= 0 && at < n ? at : n);
    places[j] = j;
  }
}

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

/// The places of an index (m), those that point at `at` from starts[at] to starts[at + 1].
struct Groups {
  Tensor buffer;
  const int64_t *places, *starts;

  Groups(const Tensor& index, int64_t n, Stream stream) {
    const int64_t m = index.numel();
    buffer = empty({4 * m + n + 1}, DType::i64, index.device());
    auto* keys = static_cast<uint64_t*>(buffer.raw_device_data());
    uint64_t* sorted_keys = keys + m;
    int64_t *from = buffer.device_data<int64_t>() + 2 * m, *sorted = from + m, *ends = sorted + m;
    places = sorted, starts = ends;
    launch(make_keys, blocks_for(m), kThreads, 0, stream, index.device_data<int64_t>(), keys, from,
           m, n);
    size_t bytes = 0;
    const auto sort = [&](void* scratch) {
      const int bits = std::bit_width(static_cast<uint64_t>(n));
      check_cuda(cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, sorted_keys, from, sorted, m,
                                                 0, bits, handle(stream)),
                 IndexAdd::name);
    };
    sort(nullptr);
    const Tensor scratch = empty({static_cast<int64_t>(bytes) + 1}, DType::u8, index.device());
    sort(scratch.raw_device_data());
    launch(find_starts, blocks_for(n + 1), kThreads, 0, stream, sorted_keys, ends, m, n);
  }
};

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
    int64_t j = starts[at];
    const int64_t end = starts[at + 1];
    for (; j + kAhead <= end; j += kAhead) {
      Pack<T, kPack> more[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) more[a] = load_pack<kPack>(from + places[j + a] * inner);
#pragma unroll
      for (int a = 0; a < kAhead; ++a) add(more[a]);
    }
    for (; j < end; ++j) add(load_pack<kPack>(from + places[j] * inner));
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
  const Groups groups(index, v.n, stream);
  dispatch<dtypes>(src.dtype(), [&]<class T>() {
    const T *from = src.device_data<T>(), *base = given ? x.device_data<T>() : nullptr;
    T* to = y[0].device_data<T>();
    constexpr int kBytes = 16;
    with_pack<kBytes>(
        v.inner % kPackOf<T, kBytes> == 0,
        [&]<int kPack>() {
          const int64_t items = y[0].numel() / kPack;
          launch(add_kernel<T, kPack>, blocks_for(items), kThreads, 0, stream, base, from, to,
                 groups.places, groups.starts, items, v.n, index.numel(), v.inner);
        },
        static_cast<const T*>(to), from, base);
  });
}

}  // namespace tessera::op
