// SPDX-License-Identifier: Apache-2.0
// CUDA max and min with their index.
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/reduce/reduce_loops.cuh"

namespace tessera::op {
namespace {

template <class T, bool kLargest> struct FindPeak {
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
    if (!nan_a && va != vb) return (kLargest ? va > vb : va < vb) ? a : b;
    return a.index < b.index ? a : b;
  }
  __device__ void write(int64_t o, Acc a) const {
    y[o] = a.value;
    where[o] = a.index;
  }
};

}  // namespace

template <class Op> void Extreme<Op>::cuda(Tensors in, Outputs y, Stream stream) const {
  const int rank = in[0].rank();
  const DimMask mask = rank == 0 ? 0 : DimMask{1} << normalize_dim(dim, rank, Op::name);
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    reduce_elements<T>(
        FindPeak<T, Op::kLargest>{y[0].device_data<T>(), y[1].device_data<int64_t>()}, in[0], mask,
        stream);
  });
}
template struct Extreme<Max>;
template struct Extreme<Min>;

}  // namespace tessera::op
