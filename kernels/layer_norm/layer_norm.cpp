// SPDX-License-Identifier: Apache-2.0
// Checks, sharding, gradients and CPU kernels of layer_norm. Gradients of weight and bias are
// summed over at most 16 runs of rows, cut alike whatever the threads.
#include "tessera/kernels/layer_norm/layer_norm.h"

#include "tessera/core/scopes.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/shared/rows_impl.h"
#include "tessera/kernels/views/views.h"

#include <cmath>

namespace tessera::op {
namespace {

void check(std::string_view name, DTypeSet dtypes, Metas in, size_t parameters) {
  const TensorMeta& x = in[0];
  if (!dtypes.has(x.dtype)) fail<DTypeError>(name, "x must be of ", dtypes, ": given ", x);
  if (x.shape.rank() < 1) fail<ShapeError>(name, "x is ", x, ", expected (..., d)");
  for (size_t i = 1; i <= parameters; ++i) {
    if (!in.has(i)) continue;
    const char* what = i == 1 ? "weight" : "bias";
    if (in[i].dtype != x.dtype)
      fail<DTypeError>(name, what, " must have the dtype of x: x is ", x, ", ", what, " is ", in[i],
                       "; cast one");
    if (in[i].shape.rank() != 1 || in[i].shape[0] != x.shape.back())
      fail<ShapeError>(name, what, " must be (d) for x (..., d): x is ", x, ", ", what, " is ",
                       in[i]);
  }
}

TensorMeta row_statistic(const TensorMeta& x) {
  return {x.shape.without(x.shape.rank() - 1), compute_dtype(x.dtype), x.device};
}

// A parameter in the dtype of computation; `absent` where there is none.
template <class T>
void load_parameter(const Tensor& parameter, compute_t<T> absent, int64_t n, compute_t<T>* wide) {
  if (parameter.defined()) rows::load(parameter.data<T>(), Rows(parameter, 0).stride, n, wide);
  else std::fill_n(wide, n, absent);
}

}  // namespace

MetaList LayerNorm::meta(Metas in) const {
  check(name, dtypes, in, 2);
  if (!(eps >= 0)) fail<ValueError>(name, "eps must not be negative: given ", eps, " for ", in[0]);
  return {in[0], row_statistic(in[0]), row_statistic(in[0])};
}

ShardingRule LayerNorm::sharding(Metas in) const {
  ShardingRule r = in.size() > 2 ? rule("... d, d, d -> ... d, ..., ...", in)
                                 : rule("... d, d -> ... d, ..., ...", in);
  return r.replicate("d");
}

void LayerNorm::cpu(Tensors in, Outputs y) const {
  const Tensor& x = in[0];
  if (y[1].numel() == 0) return;
  dispatch<kFloats>(x.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Rows from(x, x.rank() - 1);
    const int64_t n = from.n;
    const T* src = x.data<T>();
    T* dst = y[0].data<T>();
    C *means = y[1].data<C>(), *rstd = y[2].data<C>();
    const Tensor parameters = empty({2, n}, dtype_of<C>);
    C *weight = parameters.data<C>(), *bias = weight + n;
    load_parameter<T>(in[1], 1, n, weight);
    load_parameter<T>(in.size() > 2 ? in[2] : Tensor(), 0, n, bias);
    for_each_row<C>(from.count, n, 1, [&](int64_t row, C* buffer, int64_t) {
      simd([&]() TESSERA_LAMBDA {
        const C* values = rows::read(src + from.offset(row), from.stride, n, buffer);
        const C mean = rows::sum(values, n) / static_cast<C>(n);
#pragma GCC ivdep
        for (int64_t i = 0; i < n; ++i) buffer[i] = values[i] - mean;
        const C r = C(1) / std::sqrt(rows::dot(buffer, buffer, n) / static_cast<C>(n) +
                                     static_cast<C>(eps));
        means[row] = mean;
        rstd[row] = r;
        T* out = dst + row * n;  // outputs are row-major
#pragma GCC ivdep
        for (int64_t i = 0; i < n; ++i)
          out[i] = static_cast<T>(buffer[i] * r * weight[i] + bias[i]);
      });
    });
  });
}

Grads LayerNorm::vjp(const Saved& s, const Grads& dy, Needs) const {
  for (size_t i = 1; i < 3; ++i) {
    if (dy[i].defined())
      fail<AutogradError>(name, i == 1 ? "mean" : "rstd",
                          " has no gradient, backward alone reads it: given dy of ", dy[i].meta());
  }
  if (!dy[0].defined()) return Grads(s.inputs());
  const bool weighted = s.has_input(1);
  auto [dx, dweight, dbias] =
      call(LayerNormBackward{},
           {s.input(0), weighted ? s.input(1) : Tensor(), s.output(1), s.output(2), dy[0]});
  Grads out{dx, weighted ? dweight : Tensor()};
  if (s.inputs() > 2) out.push_back(s.has_input(2) ? dbias : Tensor());
  return out;
}

std::vector<Sample<LayerNorm>> LayerNorm::samples() {
  const Arg x = arg({2, 3}).listed({1, 2, 4, 0.5, -1, 0}), weight = arg({3}).listed({1, -2, 0.5});
  return {
      {LayerNorm{}, {arg({5, 7}), arg({7}), arg({7})}},
      {LayerNorm{0.1}, {arg({2, 5, 6}), arg({6}), arg({6})}},
      {LayerNorm{}, {arg({5}), arg({5}), no_arg()}},
      {LayerNorm{}, {arg({5, 70}), arg({70}), no_arg()}},
      {LayerNorm{}, {arg({3, 300}), arg({300}), arg({300})}},
      {LayerNorm{}, {arg({5, 7}), no_arg(), no_arg()}},
      {LayerNorm{}, {arg({3, 300}), no_arg(), arg({300})}},
      known(LayerNorm{0.1}, {x, weight, arg({3}).listed({0.25, 1, -1})},
            {{-0.7862555203016797, 1.5181277601508398, -0.3523402998114503, 1.2034625892455924,
              3.38365647311398, -0.8808171763443009},
             {2.3333333333333335, -0.16666666666666666},
             {0.7771916402262596, 1.4301938838683883}}),
      known(LayerNorm{}, {x, weight, no_arg()},
            {{-1.0690415314502977, 0.5345207657251492, 0.6681509571564359, 1.0690312230509016,
              2.6725780576272533, 0.13362890288136264},
             {2.3333333333333335, -0.16666666666666666},
             {0.8017811485877232, 1.6035468345763522}}),
      known(LayerNorm{0.1}, {x, no_arg(), arg({3}).listed({0.25, 1, -1})},
            {{-0.7862555203016797, 0.74093611992458, 0.2953194003770993, 1.2034625892455924,
              -0.19182823655699016, -0.7616343526886019},
             {2.3333333333333335, -0.16666666666666666},
             {0.7771916402262596, 1.4301938838683883}}),
      timed(LayerNorm{}, {arg({8, 512, 256}), arg({256}), arg({256})}),
      bad(LayerNorm{}, {arg({4, 6}), arg({5}), arg({6})}, "ShapeError"),
      bad(LayerNorm{}, {arg({4, 6}), arg({6}), arg({4, 6})}, "ShapeError"),
      bad(LayerNorm{}, {arg({4, 6}).as(DType::f32), arg({6}).as(DType::bf16), no_arg()},
          "DTypeError"),
      bad(LayerNorm{-1}, {arg({4, 6}), arg({6}), arg({6})}, "ValueError"),
      bad(LayerNorm{}, {arg({}), no_arg(), no_arg()}, "ShapeError"),
  };
}

MetaList LayerNormBackward::meta(Metas in) const {
  check(name, dtypes, in, 1);
  const TensorMeta row = row_statistic(in[0]);
  for (size_t i = 2; i < 4; ++i) {
    if (!(in[i].shape == row.shape) || in[i].dtype != row.dtype)
      fail<ShapeError>(name, i == 2 ? "mean" : "rstd", " must hold one ", row.dtype,
                       " per row of x: x is ", in[0], ", given ", in[i]);
  }
  if (!(in[4].shape == in[0].shape) || in[4].dtype != in[0].dtype)
    fail<ShapeError>(name, "dy must be like x: x is ", in[0], ", dy is ", in[4]);
  const TensorMeta parameter{Shape{in[0].shape.back()}, in[0].dtype, in[0].device};
  return {in[0], parameter, parameter};
}

ShardingRule LayerNormBackward::sharding(Metas in) const {
  return rule("... d, d, ..., ..., ... d -> ... d, d, d", in).replicate("d").linear({4});
}

void LayerNormBackward::cpu(Tensors in, Outputs y) const {
  const NoGrad guard;
  const Tensor &x = in[0], &dy = in[4];
  const int last = x.rank() - 1;
  dispatch<kFloats>(x.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Rows xs(x, last), gs(dy, last);
    const int64_t n = xs.n, count = xs.count;
    // Sums over rows: partial ones over at most 16 runs, cut the same way whatever the threads.
    const int64_t run = std::max<int64_t>(16, (count + 15) / 16),
                  runs = std::max<int64_t>(1, (count + run - 1) / run);
    const int64_t padded = micro::round_up(std::max<int64_t>(n, 1), micro::kLanes<C>);
    const Tensor partial = empty({runs, 5, padded}, dtype_of<C>);
    const Tensor mean = contiguous(in[2].detach()), rstd = contiguous(in[3].detach());
    C* parts = partial.data<C>();
    const C *m_data = mean.data<C>(), *r_data = rstd.data<C>();
    const T *x_data = x.data<T>(), *g_data = dy.data<T>();
    T* dst = y[0].data<T>();
    parallel_for(runs, 1, [&](int64_t part, int64_t) {
      simd([&]() TESSERA_LAMBDA {
        C *dw = parts + part * 5 * padded, *db = dw + padded, *p = db + padded, *g = p + padded,
          *weight = g + padded;
        load_parameter<T>(in[1], 1, n, weight);
        for (int64_t i = 0; i < n; ++i) dw[i] = db[i] = 0;
        for (int64_t row = part * run; row < std::min(count, (part + 1) * run); ++row) {
          const C m = m_data[row], r = r_data[row];
          const C* x_row = rows::read(x_data + xs.offset(row), xs.stride, n, p);
          const C* g_row = rows::read(g_data + gs.offset(row), gs.stride, n, g);
#pragma GCC ivdep
          for (int64_t i = 0; i < n; ++i) {
            const C d = g_row[i];
            p[i] = (x_row[i] - m) * r;  // normalised x
            dw[i] += d * p[i];
            db[i] += d;
            g[i] = d * weight[i];
          }
          const C shift = rows::sum(g, n) / static_cast<C>(n),
                  slope = rows::dot(p, g, n) / static_cast<C>(n);
          rows::store_each(n, dst + row * n, 1, [&](int64_t i) TESSERA_LAMBDA {
            return r * (g[i] - shift - p[i] * slope);
          });
        }
      });
    });
    T *dweight = y[1].data<T>(), *dbias = y[2].data<T>();
    for (int64_t i = 0; i < n; ++i) {
      C weight_sum = 0, bias_sum = 0;
      for (int64_t part = 0; part < runs; ++part) {
        weight_sum += parts[part * 5 * padded + i];
        bias_sum += parts[part * 5 * padded + padded + i];
      }
      dweight[i] = static_cast<T>(weight_sum);
      dbias[i] = static_cast<T>(bias_sum);
    }
  });
}

std::vector<Sample<LayerNormBackward>> LayerNormBackward::samples() {
  const auto operands = [](Shape x) {
    const Shape rows = x.without(x.rank() - 1);
    return std::vector<Arg>{arg(x), arg({x.back()}), arg(rows).statistic(),
                            arg(rows).uniform(0.5, 1.5).statistic(), arg(x)};
  };
  auto wrong = operands({5, 7}), wide = operands({5, 7}), of_ones = operands({2, 5, 7}),
       wide_of_ones = operands({9, 2051});
  of_ones[1] = wide_of_ones[1] = no_arg();
  wrong[4] = arg({5, 6});
  wide[2] = arg({5, 7}).statistic();
  return {
      {LayerNormBackward{}, operands({5, 7})},
      {LayerNormBackward{}, operands({2, 5, 6})},
      {LayerNormBackward{}, operands({40, 5})},
      {LayerNormBackward{}, operands({5})},
      {LayerNormBackward{}, operands({3, 300})},
      {LayerNormBackward{}, operands({40, 301})},  // several rows of warps, in turn
      {LayerNormBackward{}, operands({20, 1028})},
      {LayerNormBackward{}, operands({9, 2051})},  // more columns than a block has registers for
      {LayerNormBackward{}, operands({9, 4104})},
      {LayerNormBackward{}, of_ones},
      {LayerNormBackward{}, wide_of_ones},
      known(LayerNormBackward{},
            {arg({2, 3}).listed({1, 2, 4, 0.5, -1, 0}), arg({3}).listed({1, -2, 0.5}),
             arg({2}).listed({2.3333333333333335, -0.16666666666666666}).statistic(),
             arg({2}).listed({0.8017811485877232, 1.6035468345763522}).statistic(),
             arg({2, 3}).listed({1, 2, -1, 0.5, 1, 3})},
            {{1.5462934423416206, -2.319438015898161, 0.7731445735565396, -1.2598766418798975,
              -0.6300310951926124, 1.8899077370725097},
             {-0.5345259199248471, -1.870809794538776, -0.5345284970246956},
             {1.5, 3, 2}}),
      timed(LayerNormBackward{}, operands({8, 512, 256})),
      bad(LayerNormBackward{}, wrong, "ShapeError"),
      bad(LayerNormBackward{}, wide, "ShapeError"),
  };
}

}  // namespace tessera::op

namespace tessera {

Tensor detail::layer_norm_dims(const Tensor& x, const Tensor& weight, const Tensor& bias,
                               double eps) {
  const int lead = x.rank() - weight.rank();
  bool fits = lead >= 0 && (!bias.defined() || bias.shape() == weight.shape());
  for (int d = 0; fits && d < weight.rank(); ++d) fits = x.shape()[lead + d] == weight.shape()[d];
  if (!fits) {
    fail<ShapeError>("layer_norm", "weight", bias.defined() ? " and bias" : "",
                     " must have the shape of x's last dims: x is ", x.meta(), ", weight is ",
                     weight.meta(), bias.defined() ? ", bias is " : "",
                     bias.defined() ? concat(bias.meta()) : "");
  }
  return reshape(
      layer_norm(flatten(x, lead), flatten(weight), bias.defined() ? flatten(bias) : bias, eps),
      x.shape());
}

}  // namespace tessera
