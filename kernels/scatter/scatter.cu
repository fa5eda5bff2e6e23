// SPDX-License-Identifier: Apache-2.0
// CUDA scatter, its gradient and scatter_reduce: a thread follows one line in the order of the
// index, or all that points at one element, so that the bits are the same on every run without
// atomics.
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/scatter/scatter.h"
#include "tessera/kernels/shared/index_places.cuh"

namespace tessera::op {
namespace {

template <class T>
__global__ void scatter_kernel(DeviceLines lines, const int64_t* index, const T* src, T* y) {
  each_indexed<false>(lines, index, [=](int64_t at, int64_t from) {
    if (at >= 0) y[at] = src[from];
  });
}

// If several indices point at one element, it gets the value of the last one.
template <class T> __global__ void put_last(PlaceRuns runs, const T* src, T* y) {
  for (int64_t p = first_item(); p < runs.count; p += item_step()) {
    if (runs.inside(p) && runs.ends(p)) y[runs.keys[p]] = src[runs.places[p]];
  }
}

// From the last index on: what comes before it for the same place finds the gradient taken.
template <class T>
__global__ void scatter_backward_kernel(DeviceLines lines, const int64_t* index, T* dx, T* dsrc) {
  each_indexed<true>(lines, index, [=](int64_t at, int64_t to) {
    dsrc[to] = at >= 0 ? dx[at] : T{};
    if (at >= 0) dx[at] = T{};
  });
}

// dx begins as the gradient and dsrc as zeros.
template <class T> __global__ void take_last(PlaceRuns runs, T* dx, T* dsrc) {
  for (int64_t p = first_item(); p < runs.count; p += item_step()) {
    if (!runs.inside(p) || !runs.ends(p)) continue;
    T& at = dx[runs.keys[p]];
    dsrc[runs.places[p]] = at;
    at = T{};
  }
}

// Narrow floats are joined in f32 and rounded once, so `y` is of the compute type.
template <class T>
__global__ void scatter_reduce_kernel(ScatterReduce op, DeviceLines lines, const int64_t* index,
                                      const T* src, compute_t<T>* y) {
  each_indexed<false>(lines, index, [=](int64_t at, int64_t from) {
    if (at >= 0) y[at] = op.joined(y[at], static_cast<compute_t<T>>(src[from]));
  });
}

struct JoinOf {
  ScatterReduce op;
  template <class C> __device__ C operator()(C a, C b) const { return op.joined(a, b); }
};

unsigned blocks_of(const DeviceLines& lines) { return blocks_for(lines.count, 64); }

}  // namespace

void Scatter::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  copy_strided(in[0], y[0], stream);
  const Tensor &index = in[1], &src = in[2];
  if (index.numel() == 0) return;
  const int d = normalize_dim(dim, index.rank(), name);
  if (!follows_lines(index.shape(), d)) {
    const SortedPlaces sorted(name, LinePointers(y[0], index, src, d), index.numel(), y[0].numel(),
                              y[0].device(), stream);
    return dispatch<dtypes>(src.dtype(), [&]<class T>() {
      launch(put_last<T>, blocks_for(index.numel()), kThreads, 0, stream, sorted.runs,
             src.device_data<T>(), y[0].device_data<T>());
    });
  }
  const DeviceLines lines(y[0], index, src, d);
  dispatch<dtypes>(src.dtype(), [&]<class T>() {
    launch(scatter_kernel<T>, blocks_of(lines), 64, 0, stream, lines, index.device_data<int64_t>(),
           src.device_data<T>(), y[0].device_data<T>());
  });
}

void ScatterBackward::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[0].numel() > 0) copy_strided(in[0], y[0], stream);
  const Tensor& index = in[1];
  if (index.numel() == 0) return;
  const int d = normalize_dim(dim, index.rank(), name);
  if (!follows_lines(index.shape(), d)) {
    Fill{y[1].shape(), y[1].dtype(), y[1].device(), 0}.cuda({}, y.subspan(1), stream);
    const SortedPlaces sorted(name, LinePointers(y[0], index, y[1], d), index.numel(), y[0].numel(),
                              y[0].device(), stream);
    return dispatch<dtypes>(y[0].dtype(), [&]<class T>() {
      launch(take_last<T>, blocks_for(index.numel()), kThreads, 0, stream, sorted.runs,
             y[0].device_data<T>(), y[1].device_data<T>());
    });
  }
  const DeviceLines lines(y[0], index, y[1], d);
  dispatch<dtypes>(y[0].dtype(), [&]<class T>() {
    launch(scatter_backward_kernel<T>, blocks_of(lines), 64, 0, stream, lines,
           index.device_data<int64_t>(), y[0].device_data<T>(), y[1].device_data<T>());
  });
}

void ScatterReduce::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  const Tensor &index = in[1], &src = in[2];
  if (index.numel() == 0) return copy_strided(in[0], y[0], stream);
  const int d = normalize_dim(dim, index.rank(), name);
  if (!follows_lines(index.shape(), d)) {
    copy_strided(in[0], y[0], stream);
    const SortedPlaces sorted(name, LinePointers(y[0], index, src, d), index.numel(), y[0].numel(),
                              y[0].device(), stream);
    return dispatch<dtypes>(src.dtype(), [&]<class T>() {
      launch(join_places<T, JoinOf>, blocks_for(index.numel()), kThreads, 0, stream, sorted.runs,
             src.device_data<T>(), y[0].device_data<T>(), JoinOf{*this});
    });
  }
  dispatch<dtypes>(src.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    constexpr bool kNarrow = !std::is_same_v<C, T>;
    Tensor all = kNarrow ? empty(y[0].shape(), dtype_of<C>, y[0].device()) : y[0];
    if constexpr (kNarrow) Cast{{}, dtype_of<C>}.cuda(in.first(1), Outputs(&all, 1), stream);
    else copy_strided(in[0], all, stream);
    const DeviceLines lines(all, index, src, d);
    launch(scatter_reduce_kernel<T>, blocks_of(lines), 64, 0, stream, *this, lines,
           index.device_data<int64_t>(), src.device_data<T>(), all.device_data<C>());
    if constexpr (kNarrow) Cast{{}, dtype_of<T>}.cuda(Tensors(&all, 1), y, stream);
  });
}

}  // namespace tessera::op
