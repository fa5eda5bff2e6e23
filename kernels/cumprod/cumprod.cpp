// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/cumprod/cumprod.h"

#include "tessera/kernels/shared/rows_impl.h"
#include "tessera/kernels/shared/scan_impl.h"
#include "tessera/kernels/shared/strided_copy_impl.h"

namespace tessera::op {
namespace {

template <class A> struct Products {
  static A start() { return A{1}; }
  TESSERA_INLINE static A join(A a, A b) { return a * b; }
};

}  // namespace

MetaList Cumprod::meta(Metas in) const {
  const TensorMeta& x = in[0];
  if (!dtypes.has(x.dtype))
    fail<DTypeError>(name, "the input must be of ", dtypes, ": given ", x, "; cast it");
  (void)normalize_dim(dim, x.shape.rank(), name);
  return {x};
}

ShardingRule Cumprod::sharding(Metas in) const {
  const Shape& shape = in[0].shape;
  return scan::rule_along(shape, normalize_dim(dim, shape.rank(), name), 1, 1);
}

void Cumprod::cpu(Tensors in, Outputs y) const {
  scan::scan<Products, dtypes>(row_major(in[0]), y[0], normalize_dim(dim, in[0].rank(), name),
                               false);
}

Grads Cumprod::vjp(const Saved& s, const Grads& dy, Needs) const {
  return {call(CumprodBackward{dim}, {s.input(0), dy[0]})};
}

std::vector<Sample<Cumprod>> Cumprod::samples() {
  const auto near_one = [](const Shape& s) { return arg(s).uniform(-1.4, 1.4); };
  return {
      {Cumprod{1}, {near_one({5, 37})}},
      {Cumprod{0}, {near_one({7, 5})}},
      {Cumprod{-2}, {near_one({5, 6, 7})}},
      {Cumprod{0}, {arg({})}},
      {Cumprod{1}, {arg({5, 300}).uniform(0.95, 1.06)}},
      known(Cumprod{1}, {arg({2, 4}).listed({2, 3, -0.5, 4, 1, 0, 5, 6})},
            {{2, 6, -3, -12, 1, 0, 0, 0}}),
      known(Cumprod{0}, {arg({2, 2}).listed({2, 3, -5, 4})}, {{2, 3, -10, 12}}),
      timed(Cumprod{1}, {near_one({1024, 1024})}),
      timed(Cumprod{0}, {near_one({1024, 1024})}),
      bad(Cumprod{2}, {arg({5, 7})}, "IndexError"),
      bad(Cumprod{0}, {arg({5}).as(DType::bool_)}, "DTypeError"),
  };
}

// --- gradient -----------------------------------------------------------------------------------------------------

MetaList CumprodBackward::meta(Metas in) const {
  const TensorMeta &x = in[0], &dy = in[1];
  if (!dtypes.has(x.dtype) || dy.dtype != x.dtype)
    fail<DTypeError>(name, "x and dy must share one dtype of ", dtypes, ": x is ", x, ", dy is ",
                     dy);
  if (!(dy.shape == x.shape))
    fail<ShapeError>(name, "x and dy must have one shape: x is ", x, ", dy is ", dy);
  (void)normalize_dim(dim, x.shape.rank(), name);
  return {x};
}

ShardingRule CumprodBackward::sharding(Metas in) const {
  const Shape& shape = in[0].shape;
  return scan::rule_along(shape, normalize_dim(dim, shape.rank(), name), 2, 1).linear({1});
}

void CumprodBackward::cpu(Tensors in, Outputs dx) const {
  const Tensor x = row_major(in[0]), dy = row_major(in[1]);
  if (x.numel() == 0) return;
  const scan::Lines l(x.shape(), normalize_dim(dim, x.rank(), name));
  constexpr int64_t kWidth = 32;  // columns at once
  const int64_t width = std::min(l.inner, kWidth), blocks = (l.inner + width - 1) / width;
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const T *from = x.data<T>(), *g = dy.data<T>();
    T* to = dx[0].data<T>();
    for_each_row<double>(
        l.outer * blocks, l.n * width, l.n * width, 1, [&](int64_t task, double* before, int64_t) {
          const int64_t column = task % blocks * width, columns = std::min(width, l.inner - column),
                        first = task / blocks * l.n * l.inner + column;
          simd([&]() TESSERA_LAMBDA {
            const auto wide = [](T v)
                                  TESSERA_LAMBDA { return static_cast<double>(static_cast<C>(v)); };
            double product[kWidth], rest[kWidth];  // rest: x[i + 1] s[i + 1]
            for (int64_t j = 0; j < kWidth; ++j) {
              product[j] = 1;
              rest[j] = 0;
            }
            for (int64_t i = 0; i < l.n; ++i) {
              const T* row = from + first + i * l.inner;
              for (int64_t j = 0; j < columns; ++j) {
                before[i * width + j] = product[j];
                product[j] *= wide(row[j]);
              }
            }
            for (int64_t i = l.n - 1; i >= 0; --i) {
              const int64_t at = first + i * l.inner;
              for (int64_t j = 0; j < columns; ++j) {
                const double s = wide(g[at + j]) + rest[j];
                to[at + j] = static_cast<T>(static_cast<C>(before[i * width + j] * s));
                rest[j] = s * wide(from[at + j]);
              }
            }
          });
        });
  });
}

std::vector<Sample<CumprodBackward>> CumprodBackward::samples() {
  const auto pair = [](const Shape& s) {
    return std::vector<Arg>{arg(s).uniform(-1.4, 1.4), arg(s)};
  };
  return {
      {CumprodBackward{1}, pair({5, 37})},
      {CumprodBackward{0}, pair({7, 5})},
      {CumprodBackward{-2}, pair({5, 6, 7})},
      {CumprodBackward{0}, pair({5, 41})},
      {CumprodBackward{0}, pair({})},
      {CumprodBackward{1}, {arg({5, 300}).uniform(0.95, 1.06), arg({5, 300})}},
      known(CumprodBackward{0}, {arg({3}).listed({2, 0, 3}), arg({3}).listed({1, 1, 1})},
            {{1, 8, 0}}),
      timed(CumprodBackward{1}, pair({1024, 1024})),
      bad(CumprodBackward{0}, {arg({5}), arg({6})}, "ShapeError"),
      bad(CumprodBackward{1}, pair({5}), "IndexError"),
      bad(CumprodBackward{0}, {arg({3}).as(DType::f32), arg({3}).as(DType::bf16)}, "DTypeError"),
  };
}

}  // namespace tessera::op
