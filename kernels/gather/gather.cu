// SPDX-License-Identifier: Apache-2.0
// CUDA gather and scatter_add, which adds in the order of the index: no atomics.
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/gather/gather.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/shared/block_reduce.cuh"
#include "tessera/kernels/shared/index_places.cuh"

namespace tessera::op {
namespace {

template <class T>
__global__ void gather_kernel(const T* x, const int64_t* index, T* y, int64_t total, int64_t n,
                              int64_t m, int64_t inner) {
  for (int64_t i = first_item(); i < total; i += item_step()) {
    const int64_t at = index[i], outer = i / (m * inner);
    if (at >= 0 && at < n) y[i] = x[(outer * n + at) * inner + i % inner];
    else if constexpr (is_floating(dtype_of<T>))
      y[i] = static_cast<T>(not_a_number<compute_t<T>>());
    else y[i] = T(0);
  }
}

// Narrow floats are summed in f32 and rounded once, so `sums` is of the compute type.
template <class T>
__global__ void scatter_kernel(DeviceLines lines, const int64_t* index, const T* src,
                               compute_t<T>* sums) {
  each_indexed<false>(lines, index, [=](int64_t at, int64_t from) {
    if (at >= 0) sums[at] += static_cast<compute_t<T>>(src[from]);
  });
}

}  // namespace

void Gather::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t total = y[0].numel();
  if (total == 0) return;
  const Tensor index = row_major(in[1], stream);
  Shape reached = index.shape();
  const int d = normalize_dim(dim, in[0].rank(), name);
  reached[d] = in[0].shape()[d];
  const Tensor x = row_major(alias(in[0], reached, in[0].strides(), in[0].offset()), stream);
  const DimView from(x.shape(), dim, name), to(index.shape(), dim, name);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    launch(gather_kernel<T>, blocks_for(total), kThreads, 0, stream, x.device_data<T>(),
           index.device_data<int64_t>(), y[0].device_data<T>(), total, from.n, to.n, to.inner);
  });
}

void ScatterAdd::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  const Tensor &index = in[1], &src = in[2];
  const auto begin = [&](Tensor& sums) {
    if (!in[0].defined())
      Fill{sums.shape(), sums.dtype(), sums.device(), 0}.cuda({}, Outputs(&sums, 1), stream);
    else if (sums.dtype() != in[0].dtype())
      Cast{{}, sums.dtype()}.cuda(in.first(1), Outputs(&sums, 1), stream);
    else copy_strided(in[0], sums, stream);
  };
  if (index.numel() == 0) return begin(y[0]);
  const int d = normalize_dim(dim, index.rank(), name);
  dispatch<dtypes>(src.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const T* from = src.device_data<T>();
    if (!follows_lines(index.shape(), d)) {
      begin(y[0]);
      const SortedPlaces sorted(name, LinePointers(y[0], index, src, d), index.numel(),
                                y[0].numel(), y[0].device(), stream);
      launch(join_places<T, SumOf>, blocks_for(index.numel()), kThreads, 0, stream, sorted.runs,
             from, y[0].device_data<T>(), SumOf{});
      return;
    }
    constexpr bool kNarrow = !std::is_same_v<C, T>;
    Tensor sums = kNarrow ? empty(y[0].shape(), dtype_of<C>, y[0].device()) : y[0];
    begin(sums);
    const DeviceLines lines(sums, index, src, d);
    launch(scatter_kernel<T>, blocks_for(lines.count, 64), 64, 0, stream, lines,
           index.device_data<int64_t>(), from, sums.device_data<C>());
    if constexpr (kNarrow) Cast{{}, dtype_of<T>}.cuda(Tensors(&sums, 1), y, stream);
  });
}

}  // namespace tessera::op
