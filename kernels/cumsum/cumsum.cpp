// SPDX-License-Identifier: Apache-2.0
// cumsum on CPU. Along the last dim, sums of a block do not wait for the last one; along
// another, columns are independent and add as vectors.
#include "tessera/kernels/cumsum/cumsum.h"

#include "tessera/kernels/shared/strided_copy_impl.h"

namespace tessera::op {
namespace {

template <class T> using sum_t = std::conditional_t<is_floating(dtype_of<T>), double, uint64_t>;

// Goes on from `carry`; x may be y.
template <class C, class A> TESSERA_INLINE void scan(const C* x, C* y, int64_t n, A& carry) {
  constexpr int64_t kBlock = 8;
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    A sum[kBlock];
    sum[0] = static_cast<A>(x[i]);
    for (int64_t j = 1; j < kBlock; ++j) sum[j] = sum[j - 1] + static_cast<A>(x[i + j]);
    for (int64_t j = 0; j < kBlock; ++j) y[i + j] = static_cast<C>(carry + sum[j]);
    carry += sum[kBlock - 1];
  }
  for (; i < n; ++i) {
    carry += static_cast<A>(x[i]);
    y[i] = static_cast<C>(carry);
  }
}

// kStep is 1, or -1 with x and y at the last element. Narrow floats are converted, and turned rows
// turned, a piece at a time, so that this is done in vectors.
template <int64_t kStep, class T> TESSERA_INLINE void sum_row(const T* x, T* y, int64_t n) {
  using C = compute_t<T>;
  sum_t<T> carry{};
  if constexpr (std::is_same_v<C, T> && kStep == 1) {
    scan(x, y, n, carry);
  } else {
    constexpr int64_t kPiece = 512;
    C piece[kPiece];
    for (int64_t i = 0; i < n; i += kPiece) {
      const int64_t count = std::min(kPiece, n - i);
      for (int64_t j = 0; j < count; ++j) piece[j] = static_cast<C>(x[(i + j) * kStep]);
      scan(piece, piece, count, carry);
      for (int64_t j = 0; j < count; ++j) y[(i + j) * kStep] = static_cast<T>(piece[j]);
    }
  }
}

// Columns of one block, which lie side by side; rows are `stride` apart.
template <class T>
TESSERA_INLINE void sum_columns(const T* x, T* y, int64_t n, int64_t stride, int64_t width) {
  using A = sum_t<T>;
  constexpr int64_t kWidest = 256;
  A sum[kWidest];
  for (int64_t c = 0; c < width; ++c) sum[c] = A{};
  for (int64_t j = 0; j < n; ++j, x += stride, y += stride) {
    for (int64_t c = 0; c < width; ++c) {
      sum[c] += static_cast<A>(static_cast<compute_t<T>>(x[c]));
      y[c] = static_cast<T>(static_cast<compute_t<T>>(sum[c]));
    }
  }
}

}  // namespace

MetaList Cumsum::meta(Metas in) const {
  const TensorMeta& x = in[0];
  if (!dtypes.has(x.dtype))
    fail<DTypeError>(name, "the input must be of ", dtypes, ": given ", x, "; cast it");
  (void)normalize_dim(dim, x.shape.rank(), name);
  return {x};
}

ShardingRule Cumsum::sharding(Metas in) const {
  const Shape& shape = in[0].shape;
  const int own = normalize_dim(dim, shape.rank(), name);
  ShardingRule r;
  SmallVector<DimFactor, kMaxRank> dims;
  for (int d = 0; d < shape.rank(); ++d) {
    dims.push_back({static_cast<int16_t>(r.add_factor(shape[d])), 1});
    if (d == own) r.replicate_factor(dims.back().factor);
  }
  return r.operand(dims).outputs_from_here().operand(dims).linear({0});
}

void Cumsum::cpu(Tensors in, Outputs y) const {
  if (y[0].numel() == 0) return;
  const Tensor x = row_major(in[0]);
  const int own = normalize_dim(dim, x.rank(), name);
  int64_t outer = 1, n = 1, inner = 1;
  for (int d = 0; d < x.rank(); ++d) (d < own ? outer : d == own ? n : inner) *= x.shape()[d];
  constexpr int64_t kGrain = 16384, kWidth = 256;
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    const T* from = x.data<T>();
    T* to = y[0].data<T>();
    if (inner == 1) {
      parallel_for(outer, std::max<int64_t>(1, kGrain / n), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const T* line = from + row * n;
          T* out = to + row * n;
          simd([&]() TESSERA_LAMBDA {
            if (reverse) sum_row<-1>(line + n - 1, out + n - 1, n);
            else sum_row<1>(line, out, n);
          });
        }
      });
      return;
    }
    const int64_t width = std::min(inner, kWidth), blocks = (inner + width - 1) / width;
    const int64_t stride = reverse ? -inner : inner, first = reverse ? (n - 1) * inner : 0;
    parallel_for(outer * blocks, std::max<int64_t>(1, kGrain / (n * width)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t task = begin; task < end; ++task) {
                     const int64_t column = task % blocks * width;
                     const int64_t at = task / blocks * n * inner + first + column;
                     const int64_t columns = std::min(width, inner - column);
                     const T* line = from + at;
                     T* out = to + at;
                     simd([&]() TESSERA_LAMBDA { sum_columns(line, out, n, stride, columns); });
                   }
                 });
  });
}

Grads Cumsum::vjp(const Saved&, const Grads& dy, Needs) const {
  return {cumsum(dy[0], dim, !reverse)};
}

std::vector<Sample<Cumsum>> Cumsum::samples() {
  return {
      {Cumsum{1, false}, {arg({5, 37})}},
      {Cumsum{0, true}, {arg({7, 5})}},
      {Cumsum{-2, false}, {arg({5, 6, 7})}},
      {Cumsum{-1, true}, {arg({5, 19})}},
      {Cumsum{0, false}, {arg({})}},
      timed(Cumsum{1, false}, {arg({1024, 1024})}),
      timed(Cumsum{0, false}, {arg({1024, 1024})}),
      bad(Cumsum{2, false}, {arg({5, 7})}, "IndexError"),
      bad(Cumsum{0, false}, {arg({5}).as(DType::bool_)}, "DTypeError"),
  };
}

}  // namespace tessera::op
