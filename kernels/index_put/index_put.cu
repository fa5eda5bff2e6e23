// SPDX-License-Identifier: Apache-2.0
// CUDA index_put_: a thread per element of a slice goes through a few indices in their order, or,
// when there are more, through those that lead to one slice, so that equal places need no atomics.
// What lies outside is left out: a kernel cannot throw.
#include "tessera/kernels/index_put/index_put.h"
#include "tessera/kernels/index_put/index_put_impl.h"
#include "tessera/kernels/shared/index_places.cuh"
#include "tessera/kernels/shared/pack.cuh"

namespace tessera::op {
namespace {

struct Indices {
  int count = 0;
  const int64_t* index[kMaxRank] = {};
  int64_t size[kMaxRank] = {}, step[kMaxRank] = {};

  // Where slice j begins, or -1.
  __device__ int64_t start(int64_t j) const {
    int64_t at = 0;
    for (int k = 0; k < count; ++k) {
      const int64_t i = index[k][j];
      if (i < 0 || i >= size[k]) return -1;
      at += i * step[k];
    }
    return at;
  }
  // By where a slice begins.
  __device__ Pointer operator()(int64_t j) const { return {start(j), j}; }
};

template <class T>
__global__ void put_in_order(T* x, const T* values, Indices indices, DeviceNest<1> nest,
                             int64_t size, int64_t m, bool accumulate) {
  for (int64_t i = first_item(); i < size; i += item_step()) {
    int64_t at[1];
    nest.offsets(i, at);
    for (int64_t j = 0; j < m; ++j) {
      const int64_t start = indices.start(j);
      if (start < 0) continue;
      T& y = x[start + at[0]];
      const T v = values[j * size + i];
      y = accumulate ? sum_of(y, v) : v;
    }
  }
}

// A thread writes kPack neighbours of a slice: the last that lead there, or x and the sum of all,
// rounded at each step as on the CPU.
template <class T, int kPack>
__global__ void put_runs(T* x, const T* values, PlaceRuns runs, DeviceNest<1> nest, int64_t size,
                         bool accumulate) {
  const int64_t packs = size / kPack;
  for (int64_t i = first_item(); i < runs.count * packs; i += item_step()) {
    const int64_t p = i / packs, column = (i - p * packs) * kPack;
    if (!runs.inside(p) || !(accumulate ? runs.begins(p) : runs.ends(p))) continue;
    int64_t at[1];
    nest.offsets(column, at);
    T* y = x + runs.keys[p] + at[0];
    const auto value = [&](int64_t j) { return load_pack<kPack>(values + j * size + column); };
    if (!accumulate) {
      store_pack(y, value(runs.places[p]));
      continue;
    }
    Pack<T, kPack> all = load_pack<kPack>(y);
    each_place<4>(runs.places, p, runs.end(p), value, [&](const Pack<T, kPack>& more) {
#pragma unroll
      for (int e = 0; e < kPack; ++e) all.v[e] = sum_of(all.v[e], more.v[e]);
    });
    store_pack(y, all);
  }
}

}  // namespace

void IndexPut::cuda(Tensors in, Outputs written, Stream stream) const {
  const Tensor& x = written[0];
  const Tensor values = row_major(in[1], stream);  // (m, ...)
  const Tensor slice = first_slice(x, in.size() - 2);
  const int64_t m = in[2].numel(), size = slice.numel();
  if (m == 0 || x.numel() == 0) return;
  Indices indices;
  std::vector<Tensor> held;    // row-major copies live until the launch
  int64_t end = 1, steps = 0;  // all slices begin below `end`
  for (size_t i = 2; i < in.size(); ++i) {
    const int k = indices.count++;
    held.push_back(row_major(in[i], stream));
    indices.index[k] = held.back().device_data<int64_t>();
    indices.size[k] = x.shape()[k];
    indices.step[k] = x.strides()[k];
    end += (x.shape()[k] - 1) * x.strides()[k];
    steps |= x.strides()[k];
  }
  const DeviceNest<1> nest(LoopNest<1>(slice.shape(), {&slice}));
  if (m <= kFewIndices) {
    return dispatch<dtypes>(x.dtype(), [&]<class T>() {
      launch(put_in_order<T>, blocks_for(size), kThreads, 0, stream, x.device_data<T>(),
             values.device_data<T>(), indices, nest, size, m, accumulate);
    });
  }
  const SortedPlaces sorted(name, indices, m, end, x.device(), stream);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    T* to = x.device_data<T>();
    const T* from = values.device_data<T>();
    constexpr int kBytes = 16, kWhole = kPackOf<T, kBytes>;
    with_pack<kBytes>(
        slice.is_contiguous() && size % kWhole == 0 && steps % kWhole == 0,
        [&]<int kPack>() {
          launch(put_runs<T, kPack>, blocks_for(m * (size / kPack)), kThreads, 0, stream, to, from,
                 sorted.runs, nest, size, accumulate);
        },
        static_cast<const T*>(to), from);
  });
}

}  // namespace tessera::op
