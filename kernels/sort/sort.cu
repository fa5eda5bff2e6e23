// SPDX-License-Identifier: Apache-2.0
// CUDA sort: columns become rows of keys with their places, which CUB sorts as segments (stable,
// the same bits on every run); the places then fetch the values.
#include "tessera/kernels/launch.cuh"
#include "tessera/kernels/order_key.h"
#include "tessera/kernels/sort/sort.h"

#include <cub/device/device_segmented_radix_sort.cuh>

namespace tessera::op {
namespace {

template <class T>
__global__ void make_keys(const T* x, order_key_t<T>* keys, int64_t* places, int64_t total,
                          int64_t n, int64_t inner, bool descending) {
  for (int64_t i = first_item(); i < total; i += item_step()) {
    const int64_t column = i / n, place = i % n;
    keys[i] = order_key(x[(column / inner * n + place) * inner + column % inner], descending);
    places[i] = place;
  }
}

template <class T>
__global__ void fetch(const T* x, const int64_t* sorted, T* values, int64_t* indices, int64_t total,
                      int64_t n, int64_t inner) {
  for (int64_t i = first_item(); i < total; i += item_step()) {
    const int64_t row = i / inner, place = i % inner, outer = row / n;
    const int64_t from = sorted[(outer * inner + place) * n + row % n];
    values[i] = x[(outer * n + from) * inner + place];
    indices[i] = from;
  }
}

__global__ void make_ends(int64_t* ends, int64_t segments, int64_t n) {
  for (int64_t i = first_item(); i <= segments; i += item_step()) ends[i] = i * n;
}

Tensor bytes_on(Device device, int64_t bytes) { return empty({bytes}, DType::u8, device); }

}  // namespace

void Sort::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t total = in[0].numel();
  if (total == 0) return;
  const Tensor x = row_major(in[0], stream);
  const Device device = x.device();
  const DimView v(x.shape(), dim, name);
  const int64_t columns = v.outer * v.inner;
  const Tensor places = empty({2, total}, DType::i64, device);
  const Tensor ends = empty({columns + 1}, DType::i64, device);
  int64_t *from = places.data<int64_t>(), *sorted = from + total, *end = ends.data<int64_t>();
  make_ends<<<blocks_for(columns + 1), kThreads, 0, handle(stream)>>>(end, columns, v.n);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    using Key = order_key_t<T>;
    const Tensor buffer = bytes_on(device, 2 * total * static_cast<int64_t>(sizeof(Key)));
    Key *keys = static_cast<Key*>(buffer.raw_data()), *sorted_keys = keys + total;
    make_keys<<<blocks_for(total), kThreads, 0, handle(stream)>>>(x.data<T>(), keys, from, total,
                                                                  v.n, v.inner, descending);
    size_t bytes = 0;
    const auto run = [&](void* scratch) {
      check_cuda(cub::DeviceSegmentedRadixSort::SortPairs(scratch, bytes, keys, sorted_keys, from,
                                                          sorted, total, columns, end, end + 1, 0,
                                                          kOrderKeyBits<T>, handle(stream)),
                 name);
    };
    run(nullptr);
    const Tensor scratch = bytes_on(device, static_cast<int64_t>(bytes) + 1);
    run(scratch.raw_data());
    fetch<<<blocks_for(total), kThreads, 0, handle(stream)>>>(
        x.data<T>(), sorted, y[0].data<T>(), y[1].data<int64_t>(), total, v.n, v.inner);
  });
  check_launch(name);
}

}  // namespace tessera::op
