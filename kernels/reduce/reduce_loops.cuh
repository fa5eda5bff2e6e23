// SPDX-License-Identifier: Apache-2.0
// CUDA loops of the reduce family. A block takes some outputs and shares out each one's elements;
// threads lie next to each other along whichever side (kept or reduced) lies next to each other in
// memory. Few outputs of many elements are cut into splits whose results a second kernel joins in
// order. An op gives its accumulator R: Acc, init() of nothing, of(x, i), join(a, b), write(o,
// acc).
#pragma once

#include "tessera/kernels/reduce/reduce_family.h"
#include "tessera/kernels/shared/block_reduce.cuh"
#include "tessera/kernels/shared/loop_nest.cuh"
#include "tessera/kernels/vector_math.h"

namespace tessera::op {

struct DeviceReduction {
  DeviceNest<1> kept, reduced;
  int64_t outputs = 1, n = 1, splits = 1,
          chunk = 1;          // elements of an output, and of one split of them
  int lanes = kThreads;       // threads per output, a power of two
  bool along_reduced = true;  // neighbouring threads take neighbouring elements
};

// Block: kThreads / lanes outputs, `lanes` threads each. Grid: (outputs, splits).
template <class R, class T>
__global__ void reduce_kernel(R r, const T* x, DeviceReduction p, typename R::Acc* partial) {
  using Acc = typename R::Acc;
  auto& shared = block_shared<Acc[kThreads]>();
  const int per_block = kThreads / p.lanes, t = threadIdx.x;
  const int lane = p.along_reduced ? t % p.lanes : t / per_block;
  const int column = p.along_reduced ? t / p.lanes : t % per_block;
  const int64_t groups = ceil_div(p.outputs, per_block);
  for (int64_t group = blockIdx.x; group < groups; group += gridDim.x) {
    const int64_t o = group * per_block + column;
    Acc acc = r.init();
    if (o < p.outputs) {
      int64_t base[1];
      p.kept.offsets(o, base);
      const int64_t begin = blockIdx.y * p.chunk, end = ::min(p.n, begin + p.chunk);
      for (int64_t i = begin + lane; i < end; i += p.lanes) {
        int64_t at[1];
        p.reduced.offsets(i, at);
        acc = R::join(acc, r.of(x[base[0] + at[0]], i));
      }
    }
    shared[lane * per_block + column] = acc;
    __syncthreads();
    for (int half = p.lanes / 2; half > 0; half /= 2) {
      if (lane < half) {
        Acc& mine = shared[lane * per_block + column];
        mine = R::join(mine, shared[(lane + half) * per_block + column]);
      }
      __syncthreads();
    }
    if (lane == 0 && o < p.outputs) {
      const Acc total = shared[column];
      if (partial) partial[blockIdx.y * p.outputs + o] = total;
      else r.write(o, total);
    }  // no barrier: of the places that the next group writes, each thread reads its own alone
  }
}

template <class R>
__global__ void join_splits(R r, const typename R::Acc* partial, int64_t outputs, int64_t splits) {
  for (int64_t o = first_item(); o < outputs; o += item_step()) {
    typename R::Acc total = partial[o];
    for (int64_t s = 1; s < splits; ++s) total = R::join(total, partial[s * outputs + o]);
    r.write(o, total);
  }
}

inline DeviceReduction make_plan(const Tensor& x, DimMask dims) {
  Shape kept_shape, kept_strides, reduced_shape, reduced_strides;
  for (int d = 0; d < x.rank(); ++d) {
    const bool reduce = dims >> d & 1;
    (reduce ? reduced_shape : kept_shape).push_back(x.shape()[d]);
    (reduce ? reduced_strides : kept_strides).push_back(x.strides()[d]);
  }
  const Tensor kept = alias(x, kept_shape, kept_strides, 0),
               reduced = alias(x, reduced_shape, reduced_strides, 0);
  const LoopNest<1> kept_nest(kept_shape, {&kept}), reduced_nest(reduced_shape, {&reduced});
  DeviceReduction p;
  p.kept = DeviceNest<1>(kept_nest);
  p.reduced = DeviceNest<1>(reduced_nest);
  p.outputs = kept_shape.numel();
  p.n = reduced_shape.numel();
  const auto inner = [](const LoopNest<1>& nest) { return nest.strides[0][nest.shape.rank() - 1]; };
  p.along_reduced = p.outputs == 1 || inner(reduced_nest) <= 1 || inner(kept_nest) != 1;
  // Along the reduced side a thread takes at least one element; across it, 32 outputs make whole
  // memory lines.
  p.lanes = p.along_reduced ? threads_for(p.n) : 8;
  const int64_t groups = ceil_div(p.outputs, kThreads / p.lanes);
  const int64_t most =
      ceil_div(p.n, int64_t{p.lanes} * 16);  // splits that leave 16 elements to a thread
  if (groups < 512)
    p.splits =
        std::clamp<int64_t>(1024 / std::max<int64_t>(groups, 1), 1, std::max<int64_t>(most, 1));
  p.chunk = std::max<int64_t>(ceil_div(p.n, p.splits), 1);
  p.splits = std::max<int64_t>(ceil_div(p.n, p.chunk), 1);
  return p;
}

template <class T, class R>
void reduce_elements(const R& r, const Tensor& x, DimMask dims, Stream stream) {
  const DeviceReduction p = make_plan(x, dims);
  if (p.outputs == 0) return;
  using Acc = typename R::Acc;
  Tensor partial;
  if (p.splits > 1)
    partial =
        empty({p.splits * p.outputs * static_cast<int64_t>(sizeof(Acc))}, DType::u8, x.device());
  Acc* sums = partial.defined() ? static_cast<Acc*>(partial.raw_device_data()) : nullptr;
  const dim3 grid(blocks_for(p.outputs, kThreads / p.lanes), static_cast<unsigned>(p.splits));
  launch(reduce_kernel<R, T>, grid, kThreads, 0, stream, r,
         static_cast<const T*>(x.raw_device_data()), p, sums);
  if (!sums) return;
  launch(join_splits<R>, blocks_for(p.outputs), kThreads, 0, stream, r, sums, p.outputs, p.splits);
}

}  // namespace tessera::op
