// SPDX-License-Identifier: Apache-2.0
// CUDA sums, means, products, peaks and truth over any dims.
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/reduce/reduce_loops.cuh"

#include <limits>
#include <type_traits>

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

template <class T> struct MultiplyUp {
  using C = compute_t<T>;
  struct Acc {
    C product;
  };
  T* y;
  __device__ static Acc init() { return {C(1)}; }
  __device__ static Acc of(T x, int64_t) { return {static_cast<C>(x)}; }
  __device__ static Acc join(Acc a, Acc b) { return {a.product * b.product}; }
  __device__ void write(int64_t o, Acc a) const { y[o] = static_cast<T>(a.product); }
};

// Largest (smallest) value; NaN wins. Bools are any and all.
template <class T, bool kLargest> struct PeakUp {
  using C = compute_t<T>;
  struct Acc {
    C value;
  };
  T* y;
  C nothing;  // no element changes by it
  __device__ Acc init() const { return {nothing}; }
  __device__ static Acc of(T x, int64_t) { return {static_cast<C>(x)}; }
  __device__ static Acc join(Acc a, Acc b) {
    const bool other = (kLargest ? b.value > a.value : b.value < a.value) || b.value != b.value;
    return other && a.value == a.value ? b : a;
  }
  __device__ void write(int64_t o, Acc a) const { y[o] = static_cast<T>(a.value); }
};

template <class T, bool kLargest> compute_t<T> peak_of_nothing() {
  using C = compute_t<T>;
  if constexpr (std::is_floating_point_v<C>)
    return kLargest ? -std::numeric_limits<C>::infinity() : std::numeric_limits<C>::infinity();
  else return kLargest ? std::numeric_limits<C>::lowest() : std::numeric_limits<C>::max();
}

}  // namespace

void Sum::cuda(Tensors in, Outputs y, Stream stream) const {
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    reduce_elements<T>(SumUp<T>{y[0].device_data<T>(), compute_t<T>(1)}, in[0], dims, stream);
  });
}

void Mean::cuda(Tensors in, Outputs y, Stream stream) const {
  int64_t divisor_of_sum = 1;
  for (int d = 0; d < in[0].rank(); ++d) divisor_of_sum *= dims >> d & 1 ? in[0].shape()[d] : 1;
  if (count > 0) divisor_of_sum = count;
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    reduce_elements<T>(SumUp<T>{y[0].device_data<T>(), static_cast<compute_t<T>>(divisor_of_sum)},
                       in[0], dims, stream);
  });
}

void LogSumExp::cuda(Tensors in, Outputs y, Stream stream) const {
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    reduce_elements<T>(LogSumUp<T>{y[0].device_data<T>()}, in[0], dims, stream);
  });
}

void Prod::cuda(Tensors in, Outputs y, Stream stream) const {
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    reduce_elements<T>(MultiplyUp<T>{y[0].device_data<T>()}, in[0], dims, stream);
  });
}

template <class Op> void Peak<Op>::cuda(Tensors in, Outputs y, Stream stream) const {
  dispatch<Reduce<Op>::dtypes>(in[0].dtype(), [&]<class T>() {
    reduce_elements<T>(
        PeakUp<T, Op::kLargest>{y[0].device_data<T>(), peak_of_nothing<T, Op::kLargest>()}, in[0],
        this->dims, stream);
  });
}
template struct Peak<AMax>;
template struct Peak<AMin>;

template <class Op> void Truth<Op>::cuda(Tensors in, Outputs y, Stream stream) const {
  reduce_elements<bool>(PeakUp<bool, Op::kLargest>{y[0].device_data<bool>(), !Op::kLargest}, in[0],
                        this->dims, stream);
}
template struct Truth<Any>;
template struct Truth<All>;

}  // namespace tessera::op
