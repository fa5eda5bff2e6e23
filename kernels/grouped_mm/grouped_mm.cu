// SPDX-License-Identifier: Apache-2.0
// CUDA grouped products. In bf16 and f16 a block makes one tile of the result on tensor cores; in
// f32 and f64, which have none of full precision, a thread sums one element, in the order of k.
// Rows and tiles find their group in the offsets, which never leave the device.
#include "tessera/kernels/grouped_mm/grouped_mm.h"
#include "tessera/kernels/grouped_mm/tile_product.cuh"
#include "tessera/kernels/shared/launch.cuh"

namespace tessera::op {
namespace {

template <class T> constexpr bool kOnTensorCores = sizeof(T) == 2;

// The first of `count` groups of which `is_beyond` holds; `count` if of none.
template <class F> __device__ int64_t first_beyond(int64_t count, F is_beyond) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (is_beyond(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

// The rows that this piece has of each of all groups.
struct GroupRows {
  const int64_t* ends;
  int64_t all, first_row, rows;

  __device__ int64_t end(int64_t group) const {
    if (group < 0) return 0;
    const int64_t row = group < all ? ends[group] - first_row : rows;  // behind the last: the rest
    return row < 0 ? 0 : row < rows ? row : rows;
  }
  __device__ int64_t begin(int64_t group) const { return end(group - 1); }
  __device__ int64_t of(int64_t row) const {
    return first_beyond(all, [&](int64_t group) { return end(group) > row; });
  }

  // Tiles of rows begin where their group does, so that each has one matrix. A group's tiles are
  // numbered from begin / kTileM + group on, which leaves it as many as it can need, whatever the
  // groups before it have: nothing is counted, neither here nor on the host.
  [[nodiscard]] int64_t tiles() const { return rows / kTileM + all + 1; }
  __device__ int64_t first_tile(int64_t group) const { return begin(group) / kTileM + group; }
  __device__ int64_t of_tile(int64_t tile) const {
    return first_beyond(all, [&](int64_t group) { return first_tile(group + 1) > tile; });
  }
};

// y (rows, n); element (j, p) of a group's matrix lies at j * w_n + p * w_k.
template <class T>
__global__ void multiply_rows(const T* x, const T* w, GroupRows of, int64_t first_group,
                              int64_t groups, T* y, int64_t total, int64_t n, int64_t k,
                              int64_t w_n, int64_t w_k) {
  for (int64_t i = first_item(); i < total; i += item_step()) {
    const int64_t row = i / n;
    const int64_t group = of.of(row) - first_group;
    T sum = 0;
    if (group >= 0 && group < groups) {
      const T* from = x + row * k;
      const T* factor = w + group * n * k + i % n * w_n;
      for (int64_t p = 0; p < k; ++p) sum += from[p] * factor[p * w_k];
    }
    y[i] = sum;
  }
}

template <class T, bool kTranspose>
__global__ void __launch_bounds__(kTileThreads)
    multiply_tiles(Operand<T> x, Operand<T> w, GroupRows of, int64_t first_group, int64_t groups,
                   T* y, int64_t n, int64_t k) {
  const int64_t across = ceil_div(n, kTileN), tile = blockIdx.x / across,
                column = blockIdx.x % across * kTileN;
  const int64_t group = of.of_tile(tile), begin = of.begin(group), end = of.end(group),
                row = (tile - of.first_tile(group)) * kTileM;
  if (row < 0 || begin + row >= end) return;  // nobody's tile
  x.p += begin * k;
  x.rows = end - begin;
  const int64_t own = group - first_group;
  const bool has_matrix = own >= 0 && own < groups;
  if (has_matrix) w.p += own * n * k;
  const TileSums sums = multiply_tile<T, true, kTranspose>(x, w, row, column, has_matrix ? k : 0);
  store_tile(sums, y + begin * n, end - begin, n, row, column);
}

// c (groups, p, q) of a (rows, p) and b (rows, q).
template <class T>
__global__ void contract_rows(const T* a, const T* b, GroupRows of, int64_t first_group, T* c,
                              int64_t total, int64_t p, int64_t q) {
  for (int64_t i = first_item(); i < total; i += item_step()) {
    const int64_t group = first_group + i / (p * q), end = of.end(group);
    const T *left = a + i / q % p, *right = b + i % q;
    T sum = 0;
    for (int64_t row = of.begin(group); row < end; ++row) sum += left[row * p] * right[row * q];
    c[i] = sum;
  }
}

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    contract_tiles(Operand<T> a, Operand<T> b, GroupRows of, int64_t first_group, T* c) {
  const int64_t p = a.columns, q = b.columns;
  const int64_t down = ceil_div(p, kTileM), across = ceil_div(q, kTileN);
  const int64_t own = blockIdx.x / (down * across), group = first_group + own;
  const int64_t row = blockIdx.x / across % down * kTileM, column = blockIdx.x % across * kTileN;
  const int64_t begin = of.begin(group), end = of.end(group);
  a.p += begin * p, b.p += begin * q;
  a.rows = b.rows = end - begin;
  const TileSums sums = multiply_tile<T, false, false>(a, b, row, column, end - begin);
  store_tile(sums, c + own * p * q, p, q, row, column);
}

}  // namespace

void GroupedMM::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t total = y[0].numel();
  if (total == 0) return;
  const Tensor x = row_major(in[0], stream), w = row_major(in[1], stream),
               ends = row_major(in[2], stream);
  const int64_t n = y[0].shape()[1], k = x.shape()[1], groups = w.shape()[0];
  const GroupRows of{ends.device_data<int64_t>(), ends.numel(), piece.first_row, x.shape()[0]};
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    const T *x_data = x.device_data<T>(), *w_data = w.device_data<T>();
    T* out = y[0].device_data<T>();
    if constexpr (kOnTensorCores<T>) {
      const int64_t rows = transpose ? n : k, columns = transpose ? k : n;  // of a group's matrix
      launch(transpose ? multiply_tiles<T, true> : multiply_tiles<T, false>,
             static_cast<unsigned>(of.tiles() * ceil_div(n, kTileN)), kTileThreads, 0, stream,
             Operand<T>{x_data, 0, k, rows_aligned(x_data, k)},
             Operand<T>{w_data, rows, columns, rows_aligned(w_data, columns)}, of,
             piece.first_group, groups, out, n, k);
    } else {
      launch(multiply_rows<T>, blocks_for(total), kThreads, 0, stream, x_data, w_data, of,
             piece.first_group, groups, out, total, n, k, transpose ? k : 1, transpose ? 1 : n);
    }
  });
}

void GroupedContract::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t total = y[0].numel();
  if (total == 0) return;
  const Tensor a = row_major(in[0], stream), b = row_major(in[1], stream),
               ends = row_major(in[2], stream);
  const int64_t groups = y[0].shape()[0], p = a.shape()[1], q = b.shape()[1];
  const GroupRows of{ends.device_data<int64_t>(), ends.numel(), piece.first_row, a.shape()[0]};
  dispatch<dtypes>(a.dtype(), [&]<class T>() {
    const T *a_data = a.device_data<T>(), *b_data = b.device_data<T>();
    T* out = y[0].device_data<T>();
    if constexpr (kOnTensorCores<T>) {
      launch(contract_tiles<T>,
             static_cast<unsigned>(groups * ceil_div(p, kTileM) * ceil_div(q, kTileN)),
             kTileThreads, 0, stream, Operand<T>{a_data, 0, p, rows_aligned(a_data, p)},
             Operand<T>{b_data, 0, q, rows_aligned(b_data, q)}, of, piece.first_group, out);
    } else {
      launch(contract_rows<T>, blocks_for(total), kThreads, 0, stream, a_data, b_data, of,
             piece.first_group, out, total, p, q);
    }
  });
}

}  // namespace tessera::op
