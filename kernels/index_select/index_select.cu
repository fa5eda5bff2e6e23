// SPDX-License-Identifier: Apache-2.0
// CUDA index_select and index_add. index_add gives a thread one column, neighbours side by side,
// and adds in index order: no atomics.
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/index_select/index_select.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/shared/block_reduce.cuh"
#include "tessera/kernels/shared/launch.cuh"

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

// Narrow floats are summed in f32 and rounded once, so `sums` is of the compute type.
template <class T>
__global__ void add_kernel(const int64_t* index, const T* src, compute_t<T>* sums, int64_t columns,
                           int64_t n, int64_t m, int64_t inner) {
  for (int64_t c = first_item(); c < columns; c += item_step()) {
    const int64_t outer = c / inner, place = c % inner;
    for (int64_t j = 0; j < m; ++j) {
      const int64_t at = index[j];
      if (at < 0 || at >= n) continue;
      sums[(outer * n + at) * inner + place] +=
          static_cast<compute_t<T>>(src[(outer * m + j) * inner + place]);
    }
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
  const auto zero = [&](Tensor& x) {
    Fill{x.shape(), x.dtype(), x.device(), 0}.cuda({}, Outputs(&x, 1), stream);
  };
  const bool given = in[0].defined();
  if (in[1].numel() == 0) return given ? copy_strided(in[0], y[0], stream) : zero(y[0]);
  const Tensor index = row_major(in[1], stream), src = row_major(in[2], stream);
  const DimView v(y[0].shape(), dim, name);
  const int64_t columns = v.outer * v.inner;
  dispatch<dtypes>(src.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    constexpr bool kNarrow = !std::is_same_v<C, T>;
    Tensor sums = kNarrow ? empty(y[0].shape(), dtype_of<C>, y[0].device()) : y[0];
    if (!given) zero(sums);
    else if constexpr (kNarrow) Cast{{}, dtype_of<C>}.cuda(in.first(1), Outputs(&sums, 1), stream);
    else copy_strided(in[0], sums, stream);
    launch(add_kernel<T>, blocks_for(columns, 64), 64, 0, stream, index.device_data<int64_t>(),
           src.device_data<T>(), sums.device_data<C>(), columns, v.n, index.numel(), v.inner);
    if constexpr (kNarrow) Cast{{}, dtype_of<T>}.cuda(Tensors(&sums, 1), y, stream);
  });
}

}  // namespace tessera::op
