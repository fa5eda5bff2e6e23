// SPDX-License-Identifier: Apache-2.0
// CUDA variance and norms. Variances join counts, means and squared distances (Chan, Golub and
// LeVeque, 1979).
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/reduce/reduce_loops.cuh"

#include <cmath>
#include <limits>

namespace tessera::op {
namespace {

template <class T> struct SpreadUp {
  using C = compute_t<T>;
  struct Acc {
    C n, mean, squares;
  };
  T* y;
  C divisor;
  bool root;
  __device__ static Acc init() { return {C(0), C(0), C(0)}; }
  __device__ static Acc of(T x, int64_t) { return {C(1), static_cast<C>(x), C(0)}; }
  __device__ static Acc join(Acc a, Acc b) {
    if (a.n == 0) return b;
    if (b.n == 0) return a;
    const C n = a.n + b.n, gap = b.mean - a.mean, part = b.n / n;
    return {n, a.mean + gap * part, a.squares + b.squares + gap * gap * a.n * part};
  }
  __device__ void write(int64_t o, Acc a) const {
    const C variance = a.squares / divisor;
    y[o] = static_cast<T>(root ? std::sqrt(variance) : variance);
  }
};

enum class NormKind { size, square, count, power, largest, smallest };

template <class T, NormKind kKind> struct NormUp {
  using C = compute_t<T>;
  struct Acc {
    C norm;
  };
  T* y;
  C p, nothing;
  __device__ Acc init() const { return {nothing}; }
  __device__ Acc of(T x, int64_t) const {
    const C a = std::abs(static_cast<C>(x));
    if constexpr (kKind == NormKind::square) return {a * a};
    if constexpr (kKind == NormKind::count) return {a != C(0) ? C(1) : C(0)};
    if constexpr (kKind == NormKind::power) return {vmath::pow(a, p)};
    return {a};
  }
  __device__ static Acc join(Acc a, Acc b) {
    if constexpr (kKind == NormKind::largest || kKind == NormKind::smallest) {
      const bool other = kKind == NormKind::largest ? b.norm > a.norm : b.norm < a.norm;
      return a.norm == a.norm && (other || b.norm != b.norm) ? b : a;
    } else {
      return {a.norm + b.norm};
    }
  }
  __device__ void write(int64_t o, Acc a) const {
    C norm = a.norm;
    if constexpr (kKind == NormKind::square) norm = std::sqrt(norm);
    if constexpr (kKind == NormKind::power) norm = vmath::pow(norm, C(1) / p);
    y[o] = static_cast<T>(norm);
  }
};

}  // namespace

void Var::cuda(Tensors in, Outputs y, Stream stream) const {
  double n = 1;
  for (int d = 0; d < in[0].rank(); ++d)
    n *= static_cast<double>(dims >> d & 1 ? in[0].shape()[d] : 1);
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    reduce_elements<T>(
        SpreadUp<T>{y[0].device_data<T>(), static_cast<compute_t<T>>(n - correction), root}, in[0],
        dims, stream);
  });
}

void Norm::cuda(Tensors in, Outputs y, Stream stream) const {
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const auto run = [&]<NormKind kKind>() {
      const C nothing = kKind == NormKind::smallest ? std::numeric_limits<C>::infinity() : C(0);
      reduce_elements<T>(NormUp<T, kKind>{y[0].device_data<T>(), static_cast<C>(p), nothing}, in[0],
                         dims, stream);
    };
    if (p == 2) run.template operator()<NormKind::square>();
    else if (p == 1) run.template operator()<NormKind::size>();
    else if (p == 0) run.template operator()<NormKind::count>();
    else if (!std::isinf(p)) run.template operator()<NormKind::power>();
    else if (p > 0) run.template operator()<NormKind::largest>();
    else run.template operator()<NormKind::smallest>();
  });
}

}  // namespace tessera::op
