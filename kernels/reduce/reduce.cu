// SPDX-License-Identifier: Apache-2.0
// CUDA loops of the reduce family. A block takes some outputs and shares out each one's elements;
// threads lie next to each other along whichever side (kept or reduced) lies next to each other in
// memory. Few outputs of many elements are cut into splits whose results a second kernel joins in
// order.
#include "tessera/kernels/block_reduce.cuh"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/strided.cuh"
#include "tessera/kernels/vector_math.h"

namespace tessera::op {
namespace {

// An op's accumulator: what one element is, how two join, what is written at the end.
template <class T> struct SumUp {
  using C = compute_t<T>;
  struct Acc {
    C sum;
  };
  T* y;
  C divisor;  // 1 for sum
  __device__ static Acc init() { return {C(0)}; }
  __device__ static Acc of(T x, int64_t) { return {static_cast<C>(x)}; }
  __device__ static Acc join(Acc a, Acc b) { return {a.sum + b.sum}; }
  __device__ void write(int64_t o, Acc a) const { y[o] = static_cast<T>(a.sum / divisor); }
};

template <class T> struct LogSumUp {
  using C = compute_t<T>;
  struct Acc {
    C max, sum;  // sum of exp(x - max)
  };
  T* y;
  __device__ static Acc init() { return {minus_infinity<C>(), C(0)}; }
  __device__ static Acc of(T x, int64_t) { return {static_cast<C>(x), C(1)}; }
  __device__ static Acc join(Acc a, Acc b) {
    // Equal maxima (both infinite above all) must not become a difference of infinities.
    const C top = MaxOf{}(a.max, b.max);
    const C left = a.max == top ? a.sum : a.sum * vmath::exp(a.max - top);
    const C right = b.max == top ? b.sum : b.sum * vmath::exp(b.max - top);
    return {top, left + right};
  }
  __device__ void write(int64_t o, Acc a) const {
    y[o] = static_cast<T>(a.max == minus_infinity<C>() ? a.max : a.max + vmath::log(a.sum));
  }
};

template <class T> struct FindMax {
  struct Acc {
    T value;
    int64_t index;  // -1: nothing seen yet
  };
  T* y;
  int64_t* where;
  __device__ static Acc init() { return {T{}, -1}; }
  __device__ static Acc of(T x, int64_t i) { return {x, i}; }
  __device__ static Acc join(Acc a, Acc b) {
    if (a.index < 0) return b;
    if (b.index < 0) return a;
    const auto va = static_cast<compute_t<T>>(a.value), vb = static_cast<compute_t<T>>(b.value);
    const bool nan_a = va != va, nan_b = vb != vb;
    if (nan_a != nan_b) return nan_a ? a : b;
    if (!nan_a && va != vb) return va > vb ? a : b;
    return a.index < b.index ? a : b;
  }
  __device__ void write(int64_t o, Acc a) const {
    y[o] = a.value;
    where[o] = a.index;
  }
};

struct Plan {
  DeviceNest<1> kept, reduced;
  int64_t outputs = 1, n = 1, splits = 1,
          chunk = 1;          // elements of an output, and of one split of them
  int lanes = kThreads;       // threads per output, a power of two
  bool along_reduced = true;  // neighbouring threads take neighbouring elements
};

// Block: kThreads / lanes outputs, `lanes` threads each. Grid: (outputs, splits).
template <class R, class T>
__global__ void reduce_kernel(R r, const T* x, Plan p, typename R::Acc* partial) {
  using Acc = typename R::Acc;
  alignas(Acc) __shared__ unsigned char bytes[kThreads * sizeof(Acc)];
  Acc* shared = reinterpret_cast<Acc*>(bytes);
  const int per_block = kThreads / p.lanes, t = threadIdx.x;
  const int lane = p.along_reduced ? t % p.lanes : t / per_block;
  const int column = p.along_reduced ? t / p.lanes : t % per_block;
  const int64_t groups = ceil_div(p.outputs, per_block);
  for (int64_t group = blockIdx.x; group < groups; group += gridDim.x) {
    const int64_t o = group * per_block + column;
    Acc acc = R::init();
    if (o < p.outputs) {
      int64_t base[1];
      p.kept.offsets(o, base);
      const int64_t begin = blockIdx.y * p.chunk, end = min(p.n, begin + p.chunk);
      for (int64_t i = begin + lane; i < end; i += p.lanes) {
        int64_t at[1];
        p.reduced.offsets(i, at);
        acc = R::join(acc, R::of(x[base[0] + at[0]], i));
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
    }
    __syncthreads();
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

Plan make_plan(const Tensor& x, DimMask dims) {
  Shape kept_shape, kept_strides, reduced_shape, reduced_strides;
  for (int d = 0; d < x.rank(); ++d) {
    const bool reduce = dims >> d & 1;
    (reduce ? reduced_shape : kept_shape).push_back(x.shape()[d]);
    (reduce ? reduced_strides : kept_strides).push_back(x.strides()[d]);
  }
  const Tensor kept = alias(x, kept_shape, kept_strides, 0),
               reduced = alias(x, reduced_shape, reduced_strides, 0);
  const LoopNest<1> kept_nest(kept_shape, {&kept}), reduced_nest(reduced_shape, {&reduced});
  Plan p;
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
void reduce_elements(std::string_view name, const R& r, const Tensor& x, DimMask dims,
                     Stream stream) {
  const Plan p = make_plan(x, dims);
  if (p.outputs == 0) return;
  using Acc = typename R::Acc;
  Tensor partial;
  if (p.splits > 1)
    partial =
        empty({p.splits * p.outputs * static_cast<int64_t>(sizeof(Acc))}, DType::u8, x.device());
  Acc* sums = partial.defined() ? static_cast<Acc*>(partial.raw_data()) : nullptr;
  const dim3 grid(blocks_for(p.outputs, kThreads / p.lanes), static_cast<unsigned>(p.splits));
  reduce_kernel<<<grid, kThreads, 0, handle(stream)>>>(r, static_cast<const T*>(x.raw_data()), p,
                                                       sums);
  check_launch(name);
  if (!sums) return;
  join_splits<<<blocks_for(p.outputs), kThreads, 0, handle(stream)>>>(r, sums, p.outputs, p.splits);
  check_launch(name);
}

}  // namespace

void Sum::cuda(Tensors in, Outputs y, Stream stream) const {
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    reduce_elements<T>(name, SumUp<T>{y[0].data<T>(), compute_t<T>(1)}, in[0], dims, stream);
  });
}

void Mean::cuda(Tensors in, Outputs y, Stream stream) const {
  int64_t own = 1;
  for (int d = 0; d < in[0].rank(); ++d) own *= dims >> d & 1 ? in[0].shape()[d] : 1;
  const int64_t divisor_of_sum = count > 0 ? count : own;
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    reduce_elements<T>(name, SumUp<T>{y[0].data<T>(), static_cast<compute_t<T>>(divisor_of_sum)},
                       in[0], dims, stream);
  });
}

void LogSumExp::cuda(Tensors in, Outputs y, Stream stream) const {
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    reduce_elements<T>(name, LogSumUp<T>{y[0].data<T>()}, in[0], dims, stream);
  });
}

void Max::cuda(Tensors in, Outputs y, Stream stream) const {
  const DimMask mask = in[0].rank() == 0 ? 0 : DimMask{1} << normalize_dim(dim, in[0].rank(), name);
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    reduce_elements<T>(name, FindMax<T>{y[0].data<T>(), y[1].data<int64_t>()}, in[0], mask, stream);
  });
}

}  // namespace tessera::op
