// SPDX-License-Identifier: Apache-2.0
// The CUDA gradient of prod: a warp takes an output, and scans its elements from both ends.
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/shared/loop_nest.cuh"

namespace tessera::op {
namespace {

constexpr int kWarp = 32;

// The product of the lanes up to and with this one.
template <class C> __device__ C scan_products(C value, int lane) {
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const C other = __shfl_up_sync(0xffffffffu, value, step);
    if (lane >= step) value *= other;
  }
  return value;
}

// kept: (x, dx) of an output, inner: (x, dx) of its elements. before: (outputs, n).
template <class T, class C>
__global__ void prod_backward_kernel(const T* x, const T* dy, T* dx, C* before, int64_t outputs,
                                     int64_t n, DeviceNest<2> kept, DeviceNest<2> inner) {
  const int lane = threadIdx.x % kWarp;
  const int64_t warps = item_step() / kWarp;
  for (int64_t o = first_item() / kWarp; o < outputs; o += warps) {
    int64_t base[2];
    kept.offsets(o, base);
    C carry = static_cast<C>(dy[o]);
    for (int64_t start = 0; start < n; start += kWarp) {
      const int64_t i = start + lane;
      int64_t at[2] = {0, 0};
      if (i < n) inner.offsets(i, at);
      const C products = scan_products(i < n ? static_cast<C>(x[base[0] + at[0]]) : C(1), lane);
      const C left = __shfl_up_sync(0xffffffffu, products, 1);
      if (i < n) before[o * n + i] = carry * (lane ? left : C(1));
      carry *= __shfl_sync(0xffffffffu, products, kWarp - 1);
    }
    carry = C(1);
    for (int64_t start = 0; start < n; start += kWarp) {  // from the end
      const int64_t i = n - 1 - (start + lane);
      int64_t at[2] = {0, 0};
      if (i >= 0) inner.offsets(i, at);
      const C products = scan_products(i >= 0 ? static_cast<C>(x[base[0] + at[0]]) : C(1), lane);
      const C right = __shfl_up_sync(0xffffffffu, products, 1);
      if (i >= 0)
        dx[base[1] + at[1]] = static_cast<T>(before[o * n + i] * carry * (lane ? right : C(1)));
      carry *= __shfl_sync(0xffffffffu, products, kWarp - 1);
    }
  }
}

}  // namespace

void ProdBackward::cuda(Tensors in, Outputs dx, Stream stream) const {
  const Tensor& x = in[0];
  if (x.numel() == 0) return;
  const Tensor dy = row_major(in[1], stream);
  Shape shape[2], from[2], to[2];  // of kept dims, of reduced ones
  for (int d = 0; d < x.rank(); ++d) {
    const int side = dims >> d & 1 ? 1 : 0;
    shape[side].push_back(x.shape()[d]);
    from[side].push_back(x.strides()[d]);
    to[side].push_back(dx[0].strides()[d]);
  }
  const auto nest = [&](int side) {
    const Tensor a = alias(x, shape[side], from[side], 0), b = alias(x, shape[side], to[side], 0);
    return DeviceNest<2>(LoopNest<2>(shape[side], {&a, &b}));
  };
  const int64_t n = shape[1].numel(), outputs = shape[0].numel();
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Tensor before = empty({outputs, n}, dtype_of<C>, x.device());
    launch(prod_backward_kernel<T, C>, blocks_for(outputs * kWarp), kThreads, 0, stream,
           static_cast<const T*>(x.raw_device_data()), static_cast<const T*>(dy.raw_device_data()),
           static_cast<T*>(dx[0].raw_device_data()), before.device_data<C>(), outputs, n, nest(0),
           nest(1));
  });
}

}  // namespace tessera::op
