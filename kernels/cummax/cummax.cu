// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/cummax/cummax.h"
#include "tessera/kernels/shared/scan.cuh"

namespace tessera::op {
namespace {

template <class T, bool kLargest> struct PeakScan {
  struct Acc {
    T value;
    int64_t index;  // -1: nothing seen yet
  };
  const T* x;
  T* y;
  int64_t* at;
  __device__ static Acc start() { return {T{}, -1}; }
  __device__ static Acc join(Acc a, Acc b) {
    if (b.index < 0) return a;
    if (a.index < 0) return b;
    const auto first = static_cast<compute_t<T>>(a.value),
               then = static_cast<compute_t<T>>(b.value);
    return (kLargest ? then >= first : then <= first) || then != then ? b : a;
  }
  __device__ Acc of(int64_t place, int64_t i) const { return {x[place], i}; }
  __device__ void write(int64_t place, int64_t, Acc best) const {
    y[place] = best.value;
    at[place] = best.index;
  }
};

}  // namespace

template <class Op> void Cumextreme<Op>::cuda(Tensors in, Outputs y, Stream stream) const {
  const Tensor x = row_major(in[0], stream);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    scan::run(PeakScan<T, Op::kLargest>{x.device_data<T>(), y[0].device_data<T>(),
                                        y[1].device_data<int64_t>()},
              DimView(x.shape(), dim, Op::name), false, stream);
  });
}
template struct Cumextreme<Cummax>;
template struct Cumextreme<Cummin>;

}  // namespace tessera::op
