// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/cumsum/cumsum.h"
#include "tessera/kernels/shared/scan.cuh"

namespace tessera::op {
namespace {

template <class T> struct SumScan {
  using Acc = scan::wide_t<T>;
  const T* x;
  T* y;
  __device__ static Acc start() { return Acc{}; }
  __device__ static Acc join(Acc a, Acc b) { return a + b; }
  __device__ Acc of(int64_t at, int64_t) const { return scan::widen(x[at]); }
  __device__ void write(int64_t at, int64_t, Acc sum) const { y[at] = scan::narrow_to<T>(sum); }
};

}  // namespace

void Cumsum::cuda(Tensors in, Outputs y, Stream stream) const {
  const Tensor x = row_major(in[0], stream);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    scan::run(SumScan<T>{x.device_data<T>(), y[0].device_data<T>()}, DimView(x.shape(), dim, name),
              reverse, stream);
  });
}

}  // namespace tessera::op
