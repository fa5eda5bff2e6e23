// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/rms_norm/rms_norm.h"

#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/rows_impl.h"
#include "tessera/kernels/statistics_impl.h"

#include <cmath>

namespace tessera::op {
namespace {

void check(std::string_view name, DTypeSet dtypes, Metas in) {
  const auto &x = in[0], &weight = in[1];
  if (x.dtype != weight.dtype || !dtypes.has(x.dtype)) {
    fail<DTypeError>(name, "x and weight must share one dtype of ", dtypes, ": x is ", x,
                     ", weight is ", weight, "; cast one");
  }
  if (x.shape.rank() < 1 || weight.shape.rank() != 1 || weight.shape[0] != x.shape.back()) {
    fail<ShapeError>(name, "weight must be (d) for x (..., d): x is ", x, ", weight is ", weight);
  }
}

}  // namespace

MetaList RmsNorm::meta(Metas in) const {
  check(name, dtypes, in);
  if (!(eps >= 0)) fail<ValueError>(name, "eps must not be negative: given ", eps, " for ", in[0]);
  return {in[0],
          {in[0].shape.without(in[0].shape.rank() - 1), statistics(in[0].dtype), in[0].device}};
}

ShardingRule RmsNorm::sharding(Metas in) const {
  return rule("... d, d -> ... d, ...", in).replicate("d");
}

void RmsNorm::cpu(Tensors in, Outputs y) const {
  const Tensor& x = in[0];
  if (y[1].numel() == 0) return;
  dispatch<kFloats>(x.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Rows from(x, x.rank() - 1), ws(in[1], 0), to(y[0], x.rank() - 1);
    const int64_t n = from.n;
    const T *src = x.data<T>(), *w = in[1].data<T>();
    T* dst = y[0].data<T>();
    C* rstd = y[1].data<C>();
    for_each_row<C>(from.count, n, 2, [&](int64_t row, C* buffer, int64_t padded) {
      simd([&]() TESSERA_LAMBDA {
        C* weight = buffer + padded;
        rows::load(src + from.offset(row), from.stride, n, buffer);
        rows::load(w, ws.stride, n, weight);
        const C r = C(1) / std::sqrt(rows::dot(buffer, buffer, n) / static_cast<C>(n) +
                                     static_cast<C>(eps));
        rstd[row] = r;
#pragma GCC ivdep
        for (int64_t i = 0; i < n; ++i) buffer[i] = buffer[i] * r * weight[i];
        rows::store(buffer, n, dst + to.offset(row), to.stride);
      });
    });
  });
}

Grads RmsNorm::vjp(const Saved& s, const Grads& dy, Needs) const {
  if (dy[1].defined())
    fail<AutogradError>(name, "rstd has no gradient, backward alone reads it: given dy of ",
                        dy[1].meta());
  if (!dy[0].defined()) return Grads(2);
  auto [dx, dweight] = call(RmsNormBackward{}, {s.input(0), s.input(1), s.output(1), dy[0]});
  return {dx, dweight};
}

std::vector<Sample<RmsNorm>> RmsNorm::samples() {
  return {
      {{1e-5}, {arg({5, 7}), arg({7})}},
      {{0.1}, {arg({2, 5, 6}), arg({6})}},
      {{1e-5}, {arg({5}), arg({5})}},
      {{1e-5}, {arg({3, 70}), arg({70})}},
      timed(RmsNorm{}, {arg({8, 512, 256}), arg({256})}),
      bad(RmsNorm{}, {arg({4, 6}), arg({5})}, "ShapeError"),
      bad(RmsNorm{}, {arg({4, 6}).as(DType::f32), arg({6}).as(DType::bf16)}, "DTypeError"),
      bad(RmsNorm{-1}, {arg({4, 6}), arg({6})}, "ValueError"),
  };
}

MetaList RmsNormBackward::meta(Metas in) const {
  check(name, dtypes, in);
  if (!(in[3].shape == in[0].shape) || in[3].dtype != in[0].dtype) {
    fail<ShapeError>(name, "dy must be like x: x is ", in[0], ", dy is ", in[3]);
  }
  if (!(in[2].shape == in[0].shape.without(in[0].shape.rank() - 1)) ||
      in[2].dtype != statistics(in[0].dtype)) {
    fail<ShapeError>(name, "rstd must hold one ", statistics(in[0].dtype), " per row of x: x is ",
                     in[0], ", rstd is ", in[2]);
  }
  return {in[0], in[1]};
}

ShardingRule RmsNormBackward::sharding(Metas in) const {
  return rule("... d, d, ..., ... d -> ... d, d", in).replicate("d").linear({3});
}

void RmsNormBackward::cpu(Tensors in, Outputs y) const {
  const Tensor &x = in[0], &dy = in[3];
  const int last = x.rank() - 1;
  dispatch<kFloats>(x.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Rows xs(x, last), gs(dy, last), ws(in[1], 0), to(y[0], last);
    const int64_t n = xs.n, count = xs.count;
    // dweight: partial sums over at most 16 runs of rows, cut the same way whatever the threads.
    const int64_t run = std::max<int64_t>(16, (count + 15) / 16),
                  runs = std::max<int64_t>(1, (count + run - 1) / run);
    const int64_t padded = micro::round_up(std::max<int64_t>(n, 1), micro::kLanes<C>);
    const Tensor partial = empty({runs, 4, padded}, dtype_of<C>), rstd = contiguous(in[2].detach());
    C* parts = partial.data<C>();
    const C* r_data = rstd.data<C>();
    const T *x_data = x.data<T>(), *g_data = dy.data<T>(), *w = in[1].data<T>();
    T* dst = y[0].data<T>();
    parallel_for(runs, 1, [&](int64_t part, int64_t) {
      simd([&]() TESSERA_LAMBDA {
        C *dw = parts + part * 4 * padded, *p = dw + padded, *g = p + padded, *weight = g + padded;
        rows::load(w, ws.stride, n, weight);
        for (int64_t i = 0; i < n; ++i) dw[i] = 0;
        for (int64_t row = part * run; row < std::min(count, (part + 1) * run); ++row) {
          const C r = r_data[row];
          rows::load(x_data + xs.offset(row), xs.stride, n, p);
          rows::load(g_data + gs.offset(row), gs.stride, n, g);
#pragma GCC ivdep
          for (int64_t i = 0; i < n; ++i) {
            p[i] *= r;  // normalised x
            dw[i] += g[i] * p[i];
            g[i] *= weight[i];
          }
          const C shift = rows::dot(p, g, n) / static_cast<C>(n);
#pragma GCC ivdep
          for (int64_t i = 0; i < n; ++i) p[i] = r * (g[i] - p[i] * shift);
          rows::store(p, n, dst + to.offset(row), to.stride);
        }
      });
    });
    T* dweight = y[1].data<T>();
    for (int64_t i = 0; i < n; ++i) {
      C sum = 0;
      for (int64_t part = 0; part < runs; ++part) sum += parts[part * 4 * padded + i];
      dweight[i] = static_cast<T>(sum);
    }
  });
}

std::vector<Sample<RmsNormBackward>> RmsNormBackward::samples() {
  const auto operands = [](Shape x) {
    const Shape row{x.back()};
    return std::vector<Arg>{arg(x), arg(row),
                            arg(x.without(x.rank() - 1)).uniform(0.5, 1.5).statistic(), arg(x)};
  };
  auto wrong = operands({5, 7});
  wrong[3] = arg({5, 6});
  return {
      {RmsNormBackward{}, operands({5, 7})},
      {RmsNormBackward{}, operands({2, 5, 6})},
      {RmsNormBackward{}, operands({40, 5})},
      {RmsNormBackward{}, operands({5})},
      timed(RmsNormBackward{}, operands({8, 512, 256})),
      bad(RmsNormBackward{}, wrong, "ShapeError"),
  };
}

}  // namespace tessera::op
