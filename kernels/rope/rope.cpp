// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/rope/rope.h"

#include "tessera/kernels/rows_impl.h"
#include "tessera/kernels/statistics_impl.h"

#include <cmath>

namespace tessera::op {

MetaList Rope::meta(Metas in) const {
  const auto &x = in[0], &cos = in[1], &sin = in[2];
  if (!dtypes.has(x.dtype)) fail<DTypeError>(name, "expected a dtype of ", dtypes, ": x is ", x);
  const DType table = statistics(x.dtype);
  if (cos.dtype != table || sin.dtype != table) {
    fail<DTypeError>(name, "the tables must be ", table, " for x ", x, ": cos is ", cos,
                     ", sin is ", sin);
  }
  const int r = x.shape.rank();
  if (r < 3 || x.shape[r - 1] % 2 != 0)
    fail<ShapeError>(name, "x must be (..., t, h, d) with d even: given ", x);
  const Shape expected{x.shape[r - 3], x.shape[r - 1] / 2};
  if (!(cos.shape == expected) || !(sin.shape == expected)) {
    fail<ShapeError>(name, "the tables must be (t, d/2) = ", expected, " for x ", x, ": cos is ",
                     cos, ", sin is ", sin);
  }
  return {x};
}

ShardingRule Rope::sharding(Metas in) const {
  // A cut of d at whole pairs is a cut of the tables: d holds two units of the factor c.
  const Shape& x = in[0].shape;
  const int r = x.rank();
  ShardingRule rule;
  std::vector<DimFactor> dims, table(2);
  for (int d = 0; d < r; ++d) {
    const bool last = d == r - 1;
    const int f = rule.add_factor(last ? x[d] / 2 : x[d]);
    dims.push_back({static_cast<int16_t>(f), last ? 2 : 1});
  }
  table[0] = {dims[static_cast<size_t>(r - 3)].factor, 1};
  table[1] = {dims[static_cast<size_t>(r - 1)].factor, 1};
  return rule.operand(dims)
      .operand(table)
      .operand(table)
      .outputs_from_here()
      .operand(dims)
      .linear({0})
      .linear({1, 2});
}

void Rope::cpu(Tensors in, Outputs y) const {
  const Tensor& x = in[0];
  if (x.numel() == 0) return;
  dispatch<kFloats>(x.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const int r = x.rank();
    const Rows from(x, r - 1), to(y[0], r - 1);
    const int64_t half = from.n / 2, heads = x.shape()[r - 2], times = x.shape()[r - 3];
    const C *cos = in[1].data<C>(), *sin = in[2].data<C>();
    const int64_t cos_t = in[1].strides()[0], cos_d = in[1].strides()[1],
                  sin_t = in[2].strides()[0], sin_d = in[2].strides()[1];
    const T* src = x.data<T>();
    T* dst = y[0].data<T>();
    const C sign = inverse ? C(-1) : C(1);
    // A step is one time of one sequence: its heads share a row of each table.
    for_each_row<C>(from.count / heads, from.n, 2, [&](int64_t step, C* c, int64_t padded) {
      simd([&]() TESSERA_LAMBDA {
        C* s = c + padded;
        const int64_t t = step % times;
        for (int64_t i = 0; i < half; ++i) {
          c[i] = cos[t * cos_t + i * cos_d];
          s[i] = sign * sin[t * sin_t + i * sin_d];
        }
        for (int64_t h = 0; h < heads; ++h) {
          const T* __restrict p = src + from.offset(step * heads + h);
          T* __restrict q = dst + to.offset(step * heads + h);
          if (from.stride == 1) {
#pragma GCC ivdep
            for (int64_t i = 0; i < half; ++i) {
              const C a = static_cast<C>(p[2 * i]), b = static_cast<C>(p[2 * i + 1]);
              q[2 * i] = static_cast<T>(a * c[i] - b * s[i]);
              q[2 * i + 1] = static_cast<T>(a * s[i] + b * c[i]);
            }
          } else {
            for (int64_t i = 0; i < half; ++i) {
              const C a = static_cast<C>(p[2 * i * from.stride]),
                      b = static_cast<C>(p[(2 * i + 1) * from.stride]);
              q[2 * i] = static_cast<T>(a * c[i] - b * s[i]);
              q[2 * i + 1] = static_cast<T>(a * s[i] + b * c[i]);
            }
          }
        }
      });
    });
  });
}

Grads Rope::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  if (needs[1] || needs[2])
    fail<AutogradError>(name, "cos and sin are constant tables and have no gradient; detach them");
  return {call(Rope{!inverse}, {dy[0], s.input(1), s.input(2)}), Tensor(), Tensor()};
}

std::vector<Sample<Rope>> Rope::samples() {
  const auto operands = [](Shape x) {
    const Shape table{x[x.rank() - 3], x.back() / 2};
    Arg t = arg(table).uniform(-1, 1).statistic();
    t.differentiable = false;
    return std::vector<Arg>{arg(x), t, t};
  };
  auto odd = operands({2, 5, 3, 8});
  odd[0] = arg({2, 5, 3, 7});
  return {
      {{false}, operands({5, 5, 6, 10})},
      {{true}, operands({2, 7, 2, 4})},
      {{false}, operands({5, 1, 2})},
      timed(Rope{false}, operands({8, 512, 16, 16})),
      bad(Rope{}, odd, "ShapeError"),
      bad(Rope{}, {arg({5, 2, 8}), arg({4, 4}).statistic(), arg({5, 4}).statistic()}, "ShapeError"),
  };
}

}  // namespace tessera::op

namespace tessera {

std::array<Tensor, 2> rope_tables(int64_t length, int64_t dim, double theta, int64_t start,
                                  DType dtype) {
  if (dim % 2 != 0 || dim < 0 || length < 0 || !(theta > 0)) {
    fail<ValueError>("rope_tables",
                     "expected an even dim, a length of 0 or more and a positive theta: given dim ",
                     dim, ", length ", length, ", theta ", theta);
  }
  std::vector<double> c, s;
  for (int64_t t = 0; t < length; ++t) {
    for (int64_t i = 0; i < dim / 2; ++i) {
      const double angle =
          static_cast<double>(start + t) *
          std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
      c.push_back(std::cos(angle));
      s.push_back(std::sin(angle));
    }
  }
  return {from_values(c, {length, dim / 2}, dtype), from_values(s, {length, dim / 2}, dtype)};
}

}  // namespace tessera
