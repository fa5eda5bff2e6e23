// SPDX-License-Identifier: Apache-2.0
// CUDA grouped products: a thread sums one element of the result, in the order of k. Each row finds
// its group in the offsets, which never leave the device.
#include "tessera/kernels/grouped_mm/grouped_mm.h"
#include "tessera/kernels/shared/launch.cuh"

namespace tessera::op {
namespace {

// The first group that ends beyond `row`; `count` if none does.
__device__ int64_t group_of(const int64_t* ends, int64_t count, int64_t row) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (ends[middle] > row) high = middle;
    else low = middle + 1;
  }
  return low;
}

// y (rows, n); element (j, p) of a group's matrix lies at j * w_n + p * w_k.
template <class T>
__global__ void multiply_rows(const T* x, const T* w, const int64_t* ends, int64_t all,
                              int64_t first_row, int64_t first_group, int64_t groups, T* y,
                              int64_t total, int64_t n, int64_t k, int64_t w_n, int64_t w_k) {
  using C = compute_t<T>;
  for (int64_t i = first_item(); i < total; i += item_step()) {
    const int64_t row = i / n;
    const int64_t group = group_of(ends, all, first_row + row) - first_group;
    C sum = 0;
    if (group >= 0 && group < groups) {
      const T* from = x + row * k;
      const T* factor = w + group * n * k + i % n * w_n;
      for (int64_t p = 0; p < k; ++p)
        sum += static_cast<C>(from[p]) * static_cast<C>(factor[p * w_k]);
    }
    y[i] = static_cast<T>(sum);
  }
}

// c (groups, p, q) of a (rows, p) and b (rows, q).
template <class T>
__global__ void contract_rows(const T* a, const T* b, const int64_t* ends, int64_t first_row,
                              int64_t first_group, int64_t rows, T* c, int64_t total, int64_t p,
                              int64_t q) {
  using C = compute_t<T>;
  const auto own = [=](int64_t at) {
    const int64_t row = at - first_row;
    return row < 0 ? 0 : row < rows ? row : rows;
  };
  for (int64_t i = first_item(); i < total; i += item_step()) {
    const int64_t group = first_group + i / (p * q);
    const int64_t end = own(ends[group]);
    const T *left = a + i / q % p, *right = b + i % q;
    C sum = 0;
    for (int64_t row = own(group ? ends[group - 1] : 0); row < end; ++row)
      sum += static_cast<C>(left[row * p]) * static_cast<C>(right[row * q]);
    c[i] = static_cast<T>(sum);
  }
}

}  // namespace

void GroupedMM::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t total = y[0].numel();
  if (total == 0) return;
  const Tensor x = row_major(in[0], stream), w = row_major(in[1], stream),
               ends = row_major(in[2], stream);
  const int64_t n = y[0].shape()[1], k = x.shape()[1];
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    launch(multiply_rows<T>, blocks_for(total), kThreads, 0, stream, x.device_data<T>(),
           w.device_data<T>(), ends.device_data<int64_t>(), ends.numel(), piece.first_row,
           piece.first_group, w.shape()[0], y[0].device_data<T>(), total, n, k, transpose ? k : 1,
           transpose ? 1 : n);
  });
}

void GroupedContract::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t total = y[0].numel();
  if (total == 0) return;
  const Tensor a = row_major(in[0], stream), b = row_major(in[1], stream),
               ends = row_major(in[2], stream);
  dispatch<dtypes>(a.dtype(), [&]<class T>() {
    launch(contract_rows<T>, blocks_for(total), kThreads, 0, stream, a.device_data<T>(),
           b.device_data<T>(), ends.device_data<int64_t>(), piece.first_row, piece.first_group,
           a.shape()[0], y[0].device_data<T>(), total, a.shape()[1], b.shape()[1]);
  });
}

}  // namespace tessera::op
