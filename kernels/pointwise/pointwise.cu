// SPDX-License-Identifier: Apache-2.0
// CUDA arithmetic of the pointwise family, and the copies and casts that other rooms use.
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/pointwise/pointwise_loops.cuh"
#include "tessera/kernels/shared/integer_range_impl.h"

namespace tessera::op {
namespace {

template <class To, class From> struct Convert {
  __device__ __forceinline__ To f(compute_t<From> x) const { return converted<To>(x); }
};

struct CopyBits {
  template <class T> __device__ __forceinline__ T f(T x) const { return x; }
};

// A copy moves bits: four element sizes instead of ten dtypes.
template <class Bits> void copy_bits(const Tensor& x, const Tensor& y, Stream stream) {
  const Tensors in(&x, 1);
  if (flat(y, in)) launch_flat<Bits, Bits>(CopyBits{}, y, in, stream);
  else launch_strided<Bits, Bits>(CopyBits{}, y, in, stream);
}

// f32 lies between any dtype and a narrow float without changing the result, so those pairs need no
// kernel of their own.
constexpr bool narrow(DType t) { return is_floating(t) && item_size(t) < 4; }
constexpr bool direct(DType from, DType to) {
  return (!narrow(from) && !narrow(to)) || from == DType::f32 || to == DType::f32;
}

void convert(const Tensor& x, const Tensor& y, Stream stream) {
  if (!direct(x.dtype(), y.dtype())) {
    const Tensor between = empty(x.shape(), DType::f32, x.device());
    convert(x, between, stream);
    convert(between, y, stream);
    return;
  }
  dispatch<kAllDTypes>(x.dtype(), [&]<class From>() {
    dispatch<kAllDTypes>(y.dtype(), [&]<class To>() {
      if constexpr (direct(dtype_of<From>, dtype_of<To>)) {
        launch_flat<To, From>(Convert<To, From>{}, y, Tensors(&x, 1), stream);
      }
    });
  });
}

}  // namespace
}  // namespace tessera::op

namespace tessera {

void copy_strided(const Tensor& x, const Tensor& y, Stream stream) {
  switch (item_size(y.dtype())) {
    case 1: return op::copy_bits<uint8_t>(x, y, stream);
    case 2: return op::copy_bits<uint16_t>(x, y, stream);
    case 4: return op::copy_bits<uint32_t>(x, y, stream);
    default: return op::copy_bits<uint64_t>(x, y, stream);
  }
}

namespace op {

template <> void Pointwise<Copy, 1>::cuda(Tensors in, Outputs y, Stream stream) const {
  copy_strided(in[0], y[0], stream);
}

void Cast::cuda(Tensors in, Outputs y, Stream stream) const {
  const Tensor x = row_major(in[0], stream);
  if (!saturate) return convert(x, y[0], stream);
  const DType wide = to == DType::f64 ? to : DType::f32;
  Tensor bounded = empty(x.shape(), wide, x.device());
  convert(x, bounded, stream);
  const double top = largest_number(to);
  Clamp{{}, -top, top}.cuda(Tensors(&bounded, 1), Outputs(&bounded, 1), stream);
  convert(bounded, y[0], stream);
}

template struct InstantiateOnCuda<pointwise_arithmetic_ops>;

}  // namespace op
}  // namespace tessera
