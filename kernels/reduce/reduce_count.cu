// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/reduce/reduce_count.h"
#include "tessera/kernels/reduce/reduce_loops.cuh"

namespace tessera::op {
namespace {

template <class T> struct CountUp {
  struct Acc {
    int64_t count;
  };
  int64_t* y;
  __device__ static Acc init() { return {0}; }
  __device__ static Acc of(T x, int64_t) { return {static_cast<compute_t<T>>(x) != 0}; }
  __device__ static Acc join(Acc a, Acc b) { return {a.count + b.count}; }
  __device__ void write(int64_t o, Acc a) const { y[o] = a.count; }
};

}  // namespace

void CountNonzero::cuda(Tensors in, Outputs y, Stream stream) const {
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    reduce_elements<T>(CountUp<T>{y[0].device_data<int64_t>()}, in[0], dims, stream);
  });
}

}  // namespace tessera::op
