// SPDX-License-Identifier: Apache-2.0
// An index that is followed in its order on the device, with the same bits on every run and without
// atomics: the twin of index_lines_impl.h. Along short lines, or many of them, a thread follows one
// line. Else the places are sorted by where they point, and a thread joins those of one
// destination, so that only the longest run of one index counts. Both join in the same order.
#pragma once

#include "tessera/kernels/shared/loop_nest.cuh"

#include <cub/device/device_radix_sort.cuh>

#include <bit>

namespace tessera {

/// Up to this many indices take less time in their order than sorted.
inline constexpr int64_t kFewIndices = 32;

/// Where an index points (-1: outside), and the place that it has itself.
struct Pointer {
  int64_t key, place;
};

/// Places by their keys, those of one key side by side in the order of the index.
struct PlaceRuns {
  const uint64_t* keys;
  const int64_t* places;
  int64_t count;
  uint64_t limit;  // the key of those that point outside, behind all others

  __device__ bool inside(int64_t p) const { return keys[p] < limit; }
  /// Whether position p is the first, or the last, of its key.
  __device__ bool begins(int64_t p) const { return p == 0 || keys[p - 1] != keys[p]; }
  __device__ bool ends(int64_t p) const { return p + 1 == count || keys[p + 1] != keys[p]; }
  /// The position behind the last of p's key, by steps that double and a bisection.
  __device__ int64_t end(int64_t p) const {
    const uint64_t key = keys[p];
    int64_t low = p, step = 1;
    for (; low + step < count && keys[low + step] == key; step *= 2) low += step;
    int64_t high = low + step < count ? low + step : count;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      if (keys[middle] == key) low = middle;
      else high = middle;
    }
    return high;
  }
};

/// use(load(place)) for the places from `begin` to `end` in their order, kAhead loads under way.
template <int kAhead, class Load, class Use>
__device__ __forceinline__ void each_place(const int64_t* places, int64_t begin, int64_t end,
                                           const Load& load, const Use& use) {
  int64_t j = begin;
  for (; j + kAhead <= end; j += kAhead) {
    decltype(load(int64_t{})) more[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) more[a] = load(places[j + a]);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) use(more[a]);
  }
  for (; j < end; ++j) use(load(places[j]));
}

template <class Of>
__global__ void make_keys(Of pointer_of, uint64_t* keys, int64_t* places, int64_t count,
                          uint64_t limit) {
  for (int64_t i = first_item(); i < count; i += item_step()) {
    const Pointer p = pointer_of(i);
    keys[i] = p.key < 0 ? limit : static_cast<uint64_t>(p.key);
    places[i] = p.place;
  }
}

/// The pointers that pointer_of(i) gives for i below `count`, with keys below `limit`, sorted.
struct SortedPlaces {
  Tensor buffer;
  PlaceRuns runs;

  template <class Of>
  SortedPlaces(std::string_view op, const Of& pointer_of, int64_t count, int64_t limit,
               Device device, Stream stream)
      : buffer(empty({4, count}, DType::i64, device)) {
    auto* keys = static_cast<uint64_t*>(buffer.raw_device_data());
    uint64_t* sorted_keys = keys + count;
    int64_t *places = buffer.device_data<int64_t>() + 2 * count, *sorted = places + count;
    const auto outside = static_cast<uint64_t>(limit);
    launch(make_keys<Of>, blocks_for(count), kThreads, 0, stream, pointer_of, keys, places, count,
           outside);
    const int bits = std::max(1, static_cast<int>(std::bit_width(outside)));
    with_scratch(op, device, [&](void* scratch, size_t& bytes) {
      return cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, sorted_keys, places, sorted,
                                             count, 0, bits, handle(stream));
    });
    runs = {sorted_keys, sorted, count, outside};
  }
};

/// y at each key joined with src at its places; narrow floats in f32, rounded once.
template <class T, class Join>
__global__ void join_places(PlaceRuns runs, const T* src, T* y, Join join) {
  using C = compute_t<T>;
  for (int64_t p = first_item(); p < runs.count; p += item_step()) {
    if (!runs.inside(p) || !runs.begins(p)) continue;
    T& to = y[runs.keys[p]];
    C all = static_cast<C>(to);
    each_place<16>(
        runs.places, p, runs.end(p), [&](int64_t place) { return src[place]; },
        [&](T more) { all = join(all, static_cast<C>(more)); });
    to = static_cast<T>(all);
  }
}

struct DeviceLines {
  DeviceNest<3> nest;  // of the dims but the index's: y, index, other
  int64_t count, n, m;
  int64_t step[3];

  DeviceLines(const Tensor& y, const Tensor& index, const Tensor& other, int dim)
      : count(index.shape().without(dim).numel()),
        n(y.shape()[dim]),
        m(index.shape()[dim]),
        step{y.strides()[dim], index.strides()[dim], other.strides()[dim]} {
    const auto starts = [&](const Tensor& x) {
      return alias(x, index.shape().without(dim), x.strides().without(dim), x.offset());
    };
    const Tensor a = starts(y), b = starts(index), c = starts(other);
    nest = DeviceNest<3>(LoopNest<3>(b.shape(), {&a, &b, &c}));
  }
};

/// Whether lines are short, or enough to fill a device by themselves.
inline bool follows_lines(const Shape& index, int dim) {
  constexpr int64_t kManyLines = 16384;
  return index[dim] <= kFewIndices || index.numel() / index[dim] >= kManyLines;
}

/// f(offset of the element of y that the index points at, -1 where it is outside; offset in the
/// other) for each index of each line in their order, or with kBackwards from the last to the
/// first.
template <bool kBackwards, class F>
__device__ void each_indexed(const DeviceLines& lines, const int64_t* index, F f) {
  for (int64_t line = first_item(); line < lines.count; line += item_step()) {
    int64_t at[3];
    lines.nest.offsets(line, at);
    for (int64_t j = 0; j < lines.m; ++j) {
      const int64_t k = kBackwards ? lines.m - 1 - j : j;
      const int64_t place = index[at[1] + k * lines.step[1]];
      const bool inside = place >= 0 && place < lines.n;
      f(inside ? at[0] + place * lines.step[0] : -1, at[2] + k * lines.step[2]);
    }
  }
}

/// Each element of an index: the offset in y, which is row-major, that it points at, and its own in
/// the other.
struct LinePointers {
  DeviceNest<3> nest;  // y at the start of the line, index, other
  const int64_t* index;
  int64_t n, step;

  LinePointers(const Tensor& y, const Tensor& at, const Tensor& other, int dim)
      : index(at.device_data<int64_t>()), n(y.shape()[dim]), step(y.strides()[dim]) {
    Shape still = y.strides();
    still[dim] = 0;
    const Tensor starts = alias(y, at.shape(), still, y.offset());
    nest = DeviceNest<3>(LoopNest<3>(at.shape(), {&starts, &at, &other}));
  }
  __device__ Pointer operator()(int64_t i) const {
    int64_t at[3];
    nest.offsets(i, at);
    const int64_t to = index[at[1]];
    return {to >= 0 && to < n ? at[0] + to * step : -1, at[2]};
  }
};

}  // namespace tessera
