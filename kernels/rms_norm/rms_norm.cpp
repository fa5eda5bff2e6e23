// SPDX-License-Identifier: Apache-2.0
// Checks, sharding, gradients and CPU kernels of rms_norm, plain and with a residual. The weight's
// gradient is summed over at most 16 runs of rows, cut alike whatever the threads.
#include "tessera/kernels/rms_norm/rms_norm.h"

#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/shared/rows_impl.h"

#include <cmath>
#include <type_traits>

namespace tessera::op {
namespace {

void check(std::string_view name, DTypeSet dtypes, const TensorMeta& x) {
  if (!dtypes.has(x.dtype)) fail<DTypeError>(name, "x is ", x, ", expected one of ", dtypes);
  if (x.shape.rank() < 1) fail<ShapeError>(name, "x is ", x, ", expected (..., d)");
}

void check(std::string_view name, DTypeSet dtypes, const TensorMeta& x, const TensorMeta& weight) {
  if (x.dtype != weight.dtype || !dtypes.has(x.dtype)) {
    fail<DTypeError>(name, "x and weight must share one dtype of ", dtypes, ": x is ", x,
                     ", weight is ", weight, "; cast one");
  }
  if (x.shape.rank() < 1 || weight.shape.rank() != 1 || weight.shape[0] != x.shape.back()) {
    fail<ShapeError>(name, "weight must be (d) for x (..., d): x is ", x, ", weight is ", weight);
  }
}

TensorMeta rstd_of(const TensorMeta& x) {
  return {x.shape.without(x.shape.rank() - 1), compute_dtype(x.dtype), x.device};
}

void check_eps(std::string_view name, double eps, const TensorMeta& x) {
  if (!(eps >= 0)) fail<ValueError>(name, "eps must not be negative: given ", eps, " for ", x);
}

void check_offset(std::string_view name, double offset, bool weighted, const TensorMeta& x) {
  if (!std::isfinite(offset))
    fail<ValueError>(name, "weight_offset must be finite: given ", offset, " for ", x);
  if (offset != 0 && !weighted)
    fail<ValueError>(name, "weight_offset ", offset,
                     " needs a weight to be added to: given none for ", x,
                     "; a weight of zeros makes the offset the factor");
}

// The weight and its offset in the dtype of computation; ones where there is no weight.
template <class T>
void load_weight(const Tensor& weight, double offset, int64_t n, compute_t<T>* wide) {
  using C = compute_t<T>;
  if (!weight.defined()) {
    std::fill_n(wide, n, C(1));
    return;
  }
  rows::load(weight.data<T>(), Rows(weight, 0).stride, n, wide);
  if (offset == 0) return;  // not even the sign of a zero changes
  for (int64_t i = 0; i < n; ++i) wide[i] += static_cast<C>(offset);
}

// With a residual, `sum` takes x + residual, rounded to T, and the norm is of that.
template <class T, bool kAdds>
void forward(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
             double offset, const Tensor& y, const Tensor& sum, const Tensor& rstds) {
  using C = compute_t<T>;
  const int last = x.rank() - 1;
  const Rows from(x, last), more(kAdds ? residual : x, last);
  const int64_t n = from.n;
  const T *src = x.data<T>(), *add = kAdds ? residual.data<T>() : nullptr;
  T *dst = y.data<T>(), *sums = kAdds ? sum.data<T>() : nullptr;
  C* rstd = rstds.data<C>();
  const Tensor weights = empty({n}, dtype_of<C>);
  C* wide = weights.data<C>();
  load_weight<T>(weight, offset, n, wide);
  for_each_row<C>(from.count, n, 2, [&](int64_t row, C* buffer, int64_t padded) {
    simd([&]() TESSERA_LAMBDA {
      const C* values = rows::read(src + from.offset(row), from.stride, n, buffer);
      if constexpr (kAdds) {
        const C* others = rows::read(add + more.offset(row), more.stride, n, buffer + padded);
        T* s = sums + row * n;  // outputs are row-major
#pragma GCC ivdep
        for (int64_t i = 0; i < n; ++i) s[i] = static_cast<T>(values[i] + others[i]);
        values = rows::read(s, 1, n, buffer);
      }
      const C r =
          C(1) / std::sqrt(rows::dot(values, values, n) / static_cast<C>(n) + static_cast<C>(eps));
      rstd[row] = r;
      rows::store_each(n, dst + row * n, 1,
                       [&](int64_t i) TESSERA_LAMBDA { return values[i] * r * wide[i]; });
    });
  });
}

}  // namespace

MetaList RmsNorm::meta(Metas in) const {
  in.has(1) ? check(name, dtypes, in[0], in[1]) : check(name, dtypes, in[0]);
  check_eps(name, eps, in[0]);
  check_offset(name, weight_offset, in.has(1), in[0]);
  return {in[0], rstd_of(in[0])};
}

ShardingRule RmsNorm::sharding(Metas in) const {
  return rule("... d, d -> ... d, ...", in).replicate("d");
}

void RmsNorm::cpu(Tensors in, Outputs y) const {
  if (y[1].numel() == 0) return;
  dispatch<kFloats>(in[0].dtype(), [&]<class T>() {
    forward<T, false>(in[0], {}, in[1], eps, weight_offset, y[0], {}, y[1]);
  });
}

Grads RmsNorm::vjp(const Saved& s, const Grads& dy, Needs) const {
  if (dy[1].defined())
    fail<AutogradError>(name, "rstd has no gradient, backward alone reads it: given dy of ",
                        dy[1].meta());
  if (!dy[0].defined()) return Grads(2);
  const bool weighted = s.has_input(1);
  auto [dx, dweight] = call(RmsNormBackward{weight_offset},
                            {s.input(0), weighted ? s.input(1) : Tensor(), s.output(1), dy[0]});
  return {dx, weighted ? dweight : Tensor()};
}

std::vector<Sample<RmsNorm>> RmsNorm::samples() {
  const Arg x = arg({2, 3}).listed({1, 2, 4, 0.5, -1, 0}), weight = arg({3}).listed({1, -2, 0.5});
  return {
      {{1e-5}, {arg({5, 7}), arg({7})}},
      {{0.1}, {arg({2, 5, 6}), arg({6})}},
      {{1e-5}, {arg({5}), arg({5})}},
      {{1e-5}, {arg({3, 70}), arg({70})}},
      {{1e-5}, {arg({3, 301}), arg({301})}},    // more elements than a block has threads
      {{1e-5}, {arg({3, 1028}), arg({1028})}},  // and more packs
      {{1e-5}, {arg({2, 5, 7}), no_arg()}},
      {{1e-5, 1}, {arg({5, 7}), arg({7})}},
      {{1e-5, -0.5}, {arg({3, 301}), arg({301})}},
      {{1e-5, 1}, {arg({3, 1028}), arg({1028})}},
      known(RmsNorm{0.1}, {x, weight},
            {{0.37529331252040077, -1.501173250081603, 0.7505866250408015, 0.6956083436402524,
              2.7824333745610095, 0},
             {0.37529331252040077, 1.3912166872805047}}),
      known(RmsNorm{}, {x, weight},
            {{0.3779642030348929, -1.5118568121395717, 0.7559284060697858, 0.7745873742487619,
              3.0983494969950476, 0},
             {0.3779642030348929, 1.5491747484975238}}),
      known(RmsNorm{0.1}, {x, no_arg()},
            {{0.37529331252040077, 0.7505866250408015, 1.501173250081603, 0.6956083436402524,
              -1.3912166872805047, 0},
             {0.37529331252040077, 1.3912166872805047}}),
      known(RmsNorm{1e-5, 1}, {x, weight},
            {{0.7559284060697858, -0.7559284060697858, 2.2677852182093576, 1.5491747484975238,
              1.5491747484975238, 0},
             {0.3779642030348929, 1.5491747484975238}}),
      timed(RmsNorm{}, {arg({8, 512, 256}), arg({256})}),
      bad(RmsNorm{}, {arg({4, 6}), arg({5})}, "ShapeError"),
      bad(RmsNorm{}, {arg({4, 6}).as(DType::f32), arg({6}).as(DType::bf16)}, "DTypeError"),
      bad(RmsNorm{-1}, {arg({4, 6}), arg({6})}, "ValueError"),
      bad(RmsNorm{1e-5, 1}, {arg({4, 6}), no_arg()}, "ValueError"),
      bad(RmsNorm{}, {arg({}), no_arg()}, "ShapeError"),
  };
}

MetaList AddRmsNorm::meta(Metas in) const {
  check(name, dtypes, in[0], in[2]);
  if (!(in[1].shape == in[0].shape) || in[1].dtype != in[0].dtype)
    fail<ShapeError>(name, "residual must be like x: x is ", in[0], ", residual is ", in[1]);
  check_eps(name, eps, in[0]);
  check_offset(name, weight_offset, true, in[0]);
  return {in[0], in[0], rstd_of(in[0])};
}

ShardingRule AddRmsNorm::sharding(Metas in) const {
  return rule("... d, ... d, d -> ... d, ... d, ...", in).replicate("d");
}

void AddRmsNorm::cpu(Tensors in, Outputs y) const {
  if (y[2].numel() == 0) return;
  dispatch<kFloats>(in[0].dtype(), [&]<class T>() {
    forward<T, true>(in[0], in[1], in[2], eps, weight_offset, y[0], y[1], y[2]);
  });
}

Grads AddRmsNorm::vjp(const Saved& s, const Grads& dy, Needs) const {
  if (dy[2].defined())
    fail<AutogradError>(name, "rstd has no gradient, backward alone reads it: given dy of ",
                        dy[2].meta());
  if (!dy[0].defined()) return {dy[1], dy[1], Tensor()};
  auto [dx, dweight] =
      call(RmsNormBackward{weight_offset}, {s.output(1), s.input(2), s.output(2), dy[0], dy[1]});
  return {dx, dx, dweight};
}

std::vector<Sample<AddRmsNorm>> AddRmsNorm::samples() {
  return {
      {AddRmsNorm{}, {arg({5, 7}), arg({5, 7}), arg({7})}},
      {AddRmsNorm{0.1}, {arg({2, 5, 6}), arg({2, 5, 6}), arg({6})}},
      {AddRmsNorm{}, {arg({5}), arg({5}), arg({5})}},
      {AddRmsNorm{}, {arg({3, 70}), arg({3, 70}), arg({70})}},
      {AddRmsNorm{}, {arg({3, 301}), arg({3, 301}), arg({301})}},
      {AddRmsNorm{}, {arg({3, 1028}), arg({3, 1028}), arg({1028})}},
      {AddRmsNorm{1e-5, 1}, {arg({5, 7}), arg({5, 7}), arg({7})}},
      {AddRmsNorm{1e-5, 1}, {arg({3, 1028}), arg({3, 1028}), arg({1028})}},
      known(AddRmsNorm{},
            {arg({2, 3}).listed({1, 2, 4, 0.5, -1, 0}), arg({2, 3}).listed({1, 1, -1, 2, 0, -3}),
             arg({3}).listed({1, -2, 0.5})},
            {{0.7385484423204121, -2.215645326961236, 0.553911331740309, 1.0741713195168505,
              0.8593370556134804, -0.6445027917101103},
             {2, 3, 3, 2.5, -1, -3},
             {0.36927422116020603, 0.4296685278067402}}),
      known(AddRmsNorm{1e-5, 1},
            {arg({2, 3}).listed({1, 2, 4, 0.5, -1, 0}), arg({2, 3}).listed({1, 1, -1, 2, 0, -3}),
             arg({3}).listed({1, -2, 0.5})},
            {{1.4770968846408241, -1.107822663480618, 1.6617339952209271, 2.148342639033701,
              0.4296685278067402, -1.9335083751303308},
             {2, 3, 3, 2.5, -1, -3},
             {0.36927422116020603, 0.4296685278067402}}),
      timed(AddRmsNorm{}, {arg({8, 512, 256}), arg({8, 512, 256}), arg({256})}),
      bad(AddRmsNorm{}, {arg({4, 6}), arg({6}), arg({6})}, "ShapeError"),
      bad(AddRmsNorm{}, {arg({4, 6}), arg({4, 6}), arg({5})}, "ShapeError"),
      bad(AddRmsNorm{},
          {arg({4, 6}).as(DType::f32), arg({4, 6}).as(DType::f32), arg({6}).as(DType::bf16)},
          "DTypeError"),
      bad(AddRmsNorm{-1}, {arg({4, 6}), arg({4, 6}), arg({6})}, "ValueError"),
      bad(AddRmsNorm{1e-5, INFINITY}, {arg({4, 6}), arg({4, 6}), arg({6})}, "ValueError"),
  };
}

MetaList RmsNormBackward::meta(Metas in) const {
  in.has(1) ? check(name, dtypes, in[0], in[1]) : check(name, dtypes, in[0]);
  check_offset(name, weight_offset, in.has(1), in[0]);
  if (in.has(4) && (!(in[4].shape == in[0].shape) || in[4].dtype != in[0].dtype))
    fail<ShapeError>(name, "dx_more must be like x: x is ", in[0], ", dx_more is ", in[4]);
  if (!(in[3].shape == in[0].shape) || in[3].dtype != in[0].dtype) {
    fail<ShapeError>(name, "dy must be like x: x is ", in[0], ", dy is ", in[3]);
  }
  if (!(in[2].shape == in[0].shape.without(in[0].shape.rank() - 1)) ||
      in[2].dtype != compute_dtype(in[0].dtype)) {
    fail<ShapeError>(name, "rstd must hold one ", compute_dtype(in[0].dtype),
                     " per row of x: x is ", in[0], ", rstd is ", in[2]);
  }
  return {in[0], {Shape{in[0].shape.back()}, in[0].dtype, in[0].device}};
}

ShardingRule RmsNormBackward::sharding(Metas in) const {
  ShardingRule r = in.size() > 4 ? rule("... d, d, ..., ... d, ... d -> ... d, d", in)
                                 : rule("... d, d, ..., ... d -> ... d, d", in);
  r.replicate("d");
  return in.has(4) ? r.linear({3, 4}) : r.linear({3});
}

void RmsNormBackward::cpu(Tensors in, Outputs y) const {
  const bool adds = in.size() > 4 && in[4].defined();
  const Tensor &x = in[0], &dy = in[3], &more = adds ? in[4] : dy;
  const int last = x.rank() - 1;
  dispatch<kFloats>(x.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Rows xs(x, last), gs(dy, last), ms(more, last);
    const int64_t n = xs.n, count = xs.count;
    // dweight: partial sums over at most 16 runs of rows, cut the same way whatever the threads.
    const int64_t run = std::max<int64_t>(16, (count + 15) / 16),
                  runs = std::max<int64_t>(1, (count + run - 1) / run);
    const int64_t padded = micro::round_up(std::max<int64_t>(n, 1), micro::kLanes<C>);
    const Tensor partial = empty({runs, 5, padded}, dtype_of<C>), rstd = contiguous(in[2].detach());
    C* parts = partial.data<C>();
    const C* r_data = rstd.data<C>();
    const T *x_data = x.data<T>(), *g_data = dy.data<T>(), *m_data = more.data<T>();
    T* dst = y[0].data<T>();
    parallel_for(runs, 1, [&](int64_t part, int64_t) {
      simd([&]() TESSERA_LAMBDA {
        C *dw = parts + part * 5 * padded, *p = dw + padded, *g = p + padded, *m = g + padded,
          *weight = m + padded;
        load_weight<T>(in[1], weight_offset, n, weight);
        for (int64_t i = 0; i < n; ++i) dw[i] = 0;
        for (int64_t row = part * run; row < std::min(count, (part + 1) * run); ++row) {
          const C r = r_data[row];
          const C* x_row = rows::read(x_data + xs.offset(row), xs.stride, n, p);
          const C* g_row = rows::read(g_data + gs.offset(row), gs.stride, n, g);
#pragma GCC ivdep
          for (int64_t i = 0; i < n; ++i) {
            const C d = g_row[i];
            p[i] = x_row[i] * r;  // normalised x
            dw[i] += d * p[i];
            g[i] = d * weight[i];
          }
          const C shift = rows::dot(p, g, n) / static_cast<C>(n);
          if (adds) {
            const C* more_row = rows::read(m_data + ms.offset(row), ms.stride, n, m);
            rows::store_each(n, dst + row * n, 1, [&](int64_t i) TESSERA_LAMBDA {
              return r * (g[i] - p[i] * shift) + more_row[i];
            });
          } else {
            rows::store_each(n, dst + row * n, 1,
                             [&](int64_t i) TESSERA_LAMBDA { return r * (g[i] - p[i] * shift); });
          }
        }
      });
    });
    T* dweight = y[1].data<T>();
    for (int64_t i = 0; i < n; ++i) {
      C sum = 0;
      for (int64_t part = 0; part < runs; ++part) sum += parts[part * 5 * padded + i];
      dweight[i] = static_cast<T>(sum);
    }
  });
}

std::vector<Sample<RmsNormBackward>> RmsNormBackward::samples() {
  const auto operands = [](Shape x) {
    const Shape row{x.back()};
    return std::vector<Arg>{arg(x), arg(row),
                            arg(x.without(x.rank() - 1)).uniform(0.5, 1.5).statistic(), arg(x),
                            no_arg()};
  };
  const auto with_more = [&](Shape x) {
    auto in = operands(x);
    in[4] = arg(x);
    return in;
  };
  auto wrong = operands({5, 7}), wrong_more = with_more({5, 7}), of_ones = operands({2, 5, 7});
  of_ones[1] = no_arg();
  wrong[3] = arg({5, 6});
  wrong_more[4] = arg({7});
  const Arg x = arg({2, 3}).listed({1, 2, 4, 0.5, -1, 0}), weight = arg({3}).listed({1, -2, 0.5}),
            rstd = arg({2}).listed({0.3779642030348929, 1.5491747484975238}).statistic(),
            dy = arg({2, 3}).listed({1, 2, -1, 0.5, 1, 3});
  return {
      {RmsNormBackward{}, operands({5, 7})},
      {RmsNormBackward{}, operands({2, 5, 6})},
      {RmsNormBackward{}, operands({40, 5})},
      {RmsNormBackward{}, operands({5})},
      {RmsNormBackward{}, operands({3, 301})},
      {RmsNormBackward{}, operands({3, 1028})},
      {RmsNormBackward{}, operands({40, 301})},  // several rows of warps, in turn
      {RmsNormBackward{}, operands({20, 1028})},
      {RmsNormBackward{}, operands({9, 2051})},  // more columns than a block has registers for
      {RmsNormBackward{}, with_more({5, 7})},
      {RmsNormBackward{}, with_more({40, 5})},
      {RmsNormBackward{}, with_more({9, 4104})},
      {RmsNormBackward{}, of_ones},
      {RmsNormBackward{1}, operands({5, 7})},
      {RmsNormBackward{-0.5}, operands({40, 301})},
      {RmsNormBackward{1}, operands({9, 2051})},
      {RmsNormBackward{1}, with_more({20, 1028})},
      known(RmsNormBackward{}, {x, weight, rstd, dy, no_arg()},
            {{0.5399486300720941, -1.1878879580651693, 0.45895560663135837, -0.6196364380275146,
              -0.3099018724424947, 2.3237621227462855},
             {0.7652578901592739, -0.03731793635795211, -1.5118568121395717}}),
      known(RmsNormBackward{}, {x, weight, rstd, dy, arg({2, 3}).listed({1, 1, -1, 2, 0, -3})},
            {{1.5399486300720941, -0.18788795806516934, -0.5410443933686416, 1.3803635619724854,
              -0.3099018724424947, -0.6762378772537145},
             {0.7652578901592739, -0.03731793635795211, -1.5118568121395717}}),
      known(RmsNormBackward{1}, {x, weight, rstd, dy, arg({2, 3}).listed({1, 1, -1, 2, 0, -3})},
            {{1.899914563436187, 0.5320439086630162, -0.9910016750867352, 2.619692206980006,
              0.3097903345375115, 3.9712863682388573},
             {0.7652578901592739, -0.03731793635795211, -1.5118568121395717}}),
      timed(RmsNormBackward{}, operands({8, 512, 256})),
      timed(RmsNormBackward{}, with_more({8, 512, 256})),
      bad(RmsNormBackward{}, wrong, "ShapeError"),
      bad(RmsNormBackward{}, wrong_more, "ShapeError"),
      bad(RmsNormBackward{1}, of_ones, "ValueError"),
  };
}

}  // namespace tessera::op
