// SPDX-License-Identifier: Apache-2.0
// CUDA cumprod, and its gradient by two scans: products from the front, then the recurrence
// s[i] = dy[i] + x[i + 1] s[i + 1] from the end, as maps s -> scale s + shift that compose.
#include "tessera/kernels/cumprod/cumprod.h"
#include "tessera/kernels/shared/scan.cuh"

namespace tessera::op {
namespace {

template <class T, class Out> struct ProductScan {
  using Acc = scan::wide_t<T>;
  const T* x;
  Out* y;
  __device__ static Acc start() { return Acc(1); }
  __device__ static Acc join(Acc a, Acc b) { return a * b; }
  __device__ Acc of(int64_t at, int64_t) const { return scan::widen(x[at]); }
  __device__ void write(int64_t at, int64_t, Acc product) const {
    if constexpr (std::is_same_v<Out, T>) y[at] = scan::narrow_to<T>(product);
    else y[at] = product;
  }
};

template <class T> struct GradientScan {
  struct Acc {
    double scale, shift;
  };
  const T *x, *dy;
  const double* products;  // up to and with each element
  T* dx;
  int64_t n, inner;
  __device__ static Acc start() { return {1, 0}; }
  __device__ static Acc join(Acc a, Acc b) {
    return {a.scale * b.scale, b.shift + b.scale * a.shift};
  }
  __device__ Acc of(int64_t at, int64_t i) const {
    return {i + 1 < n ? scan::widen(x[at + inner]) : 0.0, scan::widen(dy[at])};
  }
  __device__ void write(int64_t at, int64_t i, Acc s) const {
    dx[at] = scan::narrow_to<T>((i > 0 ? products[at - inner] : 1.0) * s.shift);
  }
};

}  // namespace

void Cumprod::cuda(Tensors in, Outputs y, Stream stream) const {
  const Tensor x = row_major(in[0], stream);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    scan::run(ProductScan<T, T>{x.device_data<T>(), y[0].device_data<T>()},
              DimView(x.shape(), dim, name), false, stream);
  });
}

void CumprodBackward::cuda(Tensors in, Outputs dx, Stream stream) const {
  const Tensor x = row_major(in[0], stream), dy = row_major(in[1], stream),
               products = empty(x.shape(), DType::f64, x.device());
  const DimView v(x.shape(), dim, name);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    scan::run(ProductScan<T, double>{x.device_data<T>(), products.device_data<double>()}, v, false,
              stream);
    scan::run(GradientScan<T>{x.device_data<T>(), dy.device_data<T>(),
                              products.device_data<double>(), dx[0].device_data<T>(), v.n, v.inner},
              v, true, stream);
  });
}

}  // namespace tessera::op
