// SPDX-License-Identifier: Apache-2.0
// CUDA sort: columns become rows of keys with their places, which CUB sorts (stable, the same bits
// on every run): many as segments, one by all of the device; the places then fetch the values.
#include "tessera/kernels/shared/launch.cuh"
#include "tessera/kernels/sort/order_key_impl.h"
#include "tessera/kernels/sort/sort.h"

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_segmented_radix_sort.cuh>

#include <limits>

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

}  // namespace

void Sort::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t total = in[0].numel();
  if (total == 0) return;
  const Tensor x = row_major(in[0], stream);
  const Device device = x.device();
  const DimView v(x.shape(), dim, name);
  // CUB counts in int, so that many columns are sorted in groups.
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  if (v.n > kMost)
    fail<ShapeError>(name, "the CUDA kernel sorts up to ", kMost, " elements: dim ", dim, " of ",
                     x.meta(), " has more; sort parts of it, or on the CPU");
  const int64_t columns = v.outer * v.inner, group = std::min(columns, kMost / v.n);
  const Tensor places = empty({2, total}, DType::i64, device);
  const Tensor ends = empty({group + 1}, DType::i64, device);
  int64_t *from = places.device_data<int64_t>(), *sorted = from + total,
          *end = ends.device_data<int64_t>();
  if (columns > 1) launch(make_ends, blocks_for(group + 1), kThreads, 0, stream, end, group, v.n);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    using Key = order_key_t<T>;
    const Tensor buffer = empty({2 * total * static_cast<int64_t>(sizeof(Key))}, DType::u8, device);
    Key *keys = static_cast<Key*>(buffer.raw_device_data()), *sorted_keys = keys + total;
    launch(make_keys<T>, blocks_for(total), kThreads, 0, stream, x.device_data<T>(), keys, from,
           total, v.n, v.inner, descending);
    const int bits = order_bits<T>(bound);
    for (int64_t column = 0; column < columns; column += group) {
      const int64_t count = std::min(group, columns - column), at = column * v.n;
      with_scratch(name, device, [&](void* scratch, size_t& bytes) {
        return columns == 1
                   ? cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, sorted_keys, from,
                                                     sorted, v.n, 0, bits, handle(stream))
                   : cub::DeviceSegmentedRadixSort::SortPairs(
                         scratch, bytes, keys + at, sorted_keys + at, from + at, sorted + at,
                         static_cast<int>(count * v.n), static_cast<int>(count), end, end + 1, 0,
                         bits, handle(stream));
      });
    }
    launch(fetch<T>, blocks_for(total), kThreads, 0, stream, x.device_data<T>(), sorted,
           y[0].device_data<T>(), y[1].device_data<int64_t>(), total, v.n, v.inner);
  });
}

}  // namespace tessera::op
