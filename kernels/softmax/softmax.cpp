// SPDX-License-Identifier: Apache-2.0
// Checks, sharding, gradients and CPU kernels of softmax and log_softmax: one pair of loops over
// rows, told by a policy what a value and a slope are, as the CUDA kernels are.
#include "tessera/kernels/softmax/softmax.h"

#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/shared/rows_impl.h"

namespace tessera::op {
namespace {

MetaList row_meta(Metas in, int dim, DTypeSet dtypes, std::string_view name) {
  if (!dtypes.has(in[0].dtype))
    fail<DTypeError>(name, "expected a dtype of ", dtypes, ": given ", in[0]);
  (void)normalize_dim(dim, in[0].shape.rank(), name);
  return {in[0]};
}

MetaList gradient_meta(Metas in, int dim, DTypeSet dtypes, std::string_view name) {
  if (in[0].dtype != in[1].dtype || !dtypes.has(in[0].dtype)) {
    fail<DTypeError>(name, "y and dy must share one dtype of ", dtypes, ": y is ", in[0],
                     ", dy is ", in[1]);
  }
  if (!(in[0].shape == in[1].shape))
    fail<ShapeError>(name, "y and dy must have one shape: y is ", in[0], ", dy is ", in[1]);
  (void)normalize_dim(dim, in[0].shape.rank(), name);
  return {in[0]};
}

// All dims pair up; the normalised one is whole.
ShardingRule rowwise_rule(Metas in, int dim, std::string_view name) {
  const Shape& shape = in[0].shape;
  ShardingRule r = pointwise_rule(in, shape);
  if (shape.rank() > 0) r.replicate_factor(normalize_dim(dim, shape.rank(), name));
  return r;
}

// What is made of the sum of exp(x - maximum), and of one element: of x - maximum and its exp.
// Backward, what is summed over the row of y and dy, and what one element makes of that.
struct Plain {
  static constexpr int kBuffers = 1;  // exp(x - maximum) takes the place of x
  template <class C> TESSERA_INLINE static C finish(C sum) { return C(1) / sum; }
  template <class C> TESSERA_INLINE static C value(C, C power, C inverse) {
    return power * inverse;
  }
  // In a row where one y is nearly 1, dy - sum(dy y) cancels: the sum's f64 in two parts keeps what
  // is left.
  template <class C> struct Dot { C high, low; };
  template <class C> TESSERA_INLINE static Dot<C> gather(const C* y, const C* dy, int64_t n) {
    const double sum = rows::wide_dot(y, dy, n);
    const C high = static_cast<C>(sum);
    return {high, static_cast<C>(sum - static_cast<double>(high))};
  }
  template <class C> TESSERA_INLINE static C slope(C y, C dy, Dot<C> dot) {
    return y * ((dy - dot.high) - dot.low);
  }
};
struct Logarithm {
  static constexpr int kBuffers = 2;
  template <class C> TESSERA_INLINE static C finish(C sum) { return vmath::log(sum); }
  template <class C> TESSERA_INLINE static C value(C below, C, C shift) { return below - shift; }
  template <class C> TESSERA_INLINE static C gather(const C*, const C* dy, int64_t n) {
    return rows::sum(dy, n);
  }
  template <class C> TESSERA_INLINE static C slope(C y, C dy, C total) {
    return dy - vmath::exp(y) * total;
  }
};

template <class P, class Op> void forward(const Op& op, Tensors in, Outputs y) {
  const Tensor& x = in[0];
  if (x.numel() == 0) return;
  const int d = normalize_dim(op.dim, x.rank(), Op::name);
  dispatch<kFloats>(x.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Rows from(x, d), to(y[0], d);
    const T* src = x.data<T>();
    T* dst = y[0].data<T>();
    for_each_row<C>(from.count, from.n, P::kBuffers, [&](int64_t row, C* buffer, int64_t padded) {
      simd([&]() TESSERA_LAMBDA {
        C* powers = buffer + (P::kBuffers - 1) * padded;
        const C* values = rows::read(src + from.offset(row), from.stride, from.n, buffer);
        const C top = rows::max(values, from.n);
#pragma GCC ivdep
        for (int64_t i = 0; i < from.n; ++i) powers[i] = vmath::exp(values[i] - top);
        const C whole = P::finish(rows::sum(powers, from.n));
        rows::store_each(from.n, dst + to.offset(row), to.stride, [&](int64_t i) TESSERA_LAMBDA {
          return P::value(values[i] - top, powers[i], whole);
        });
      });
    });
  });
}

template <class P, class Op> void backward(const Op& op, Tensors in, Outputs dx) {
  const Tensor &y = in[0], &dy = in[1];
  if (y.numel() == 0) return;
  const int d = normalize_dim(op.dim, y.rank(), Op::name);
  dispatch<kFloats>(y.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Rows ys(y, d), gs(dy, d), to(dx[0], d);
    const T *y_data = y.data<T>(), *g_data = dy.data<T>();
    T* dst = dx[0].data<T>();
    for_each_row<C>(ys.count, ys.n, 2, [&](int64_t row, C* scratch, int64_t padded) {
      simd([&]() TESSERA_LAMBDA {
        const C* p = rows::read(y_data + ys.offset(row), ys.stride, ys.n, scratch);
        const C* g = rows::read(g_data + gs.offset(row), gs.stride, ys.n, scratch + padded);
        const auto whole = P::gather(p, g, ys.n);
        rows::store_each(ys.n, dst + to.offset(row), to.stride,
                         [&](int64_t i) TESSERA_LAMBDA { return P::slope(p[i], g[i], whole); });
      });
    });
  });
}

}  // namespace

MetaList Softmax::meta(Metas in) const { return row_meta(in, dim, dtypes, name); }

ShardingRule Softmax::sharding(Metas in) const { return rowwise_rule(in, dim, name); }

void Softmax::cpu(Tensors in, Outputs y) const { forward<Plain>(*this, in, y); }

Grads Softmax::vjp(const Saved& s, const Grads& dy, Needs) const {
  return {call(SoftmaxBackward{dim}, {s.output(), dy[0]})};
}

std::vector<Sample<Softmax>> Softmax::samples() {
  const Arg x = arg({2, 3}).listed({1, 2, 4, 0.5, -1, 0});
  return {
      {{-1}, {arg({5, 7})}},
      {{0}, {arg({5, 6})}},
      {{1}, {arg({5, 9, 6})}},
      {{-1}, {arg({})}},
      {{-1}, {arg({3, 67})}},
      {{-1}, {arg({3, 300})}},
      known(Softmax{-1}, {x},
            {{0.04201006613406605, 0.11419519938459449, 0.8437947344813395, 0.5465493872661796,
              0.12195165230972885, 0.3314989604240915}}),
      known(Softmax{0}, {x},
            {{0.6224593312018546, 0.9525741268224334, 0.9820137900379085, 0.37754066879814546,
              0.04742587317756679, 0.017986209962091555}}),
      timed(Softmax{-1}, {arg({4096, 512})}),
      bad(Softmax{3}, {arg({4, 6})}, "IndexError"),
      bad(Softmax{}, {index_arg({4}, 0, 3)}, "DTypeError"),
  };
}

MetaList SoftmaxBackward::meta(Metas in) const { return gradient_meta(in, dim, dtypes, name); }

ShardingRule SoftmaxBackward::sharding(Metas in) const {
  return rowwise_rule(in, dim, name).linear({1});
}

void SoftmaxBackward::cpu(Tensors in, Outputs dx) const { backward<Plain>(*this, in, dx); }

Grads SoftmaxBackward::vjp(const Saved& s, const Grads& g, Needs needs) const {
  const Tensor &y = s.input(0), &dy = s.input(1);
  Grads out(2);
  if (needs[1]) out[1] = call(SoftmaxBackward{dim}, {y, g[0]});
  if (needs[0]) {
    // d/dy of y (dy - sum(dy y)): g (dy - sum(dy y)) - dy sum(g y).
    out[0] = sub(mul(g[0], sub(dy, sum(mul(dy, y), {dim}, true))),
                 mul(dy, sum(mul(g[0], y), {dim}, true)));
  }
  return out;
}

std::vector<Sample<SoftmaxBackward>> SoftmaxBackward::samples() {
  return {
      {{-1}, {arg({5, 7}).uniform(0, 1), arg({5, 7})}},
      {{0}, {arg({5, 6}).uniform(0, 1), arg({5, 6})}},
      {{1}, {arg({5, 9, 6}).uniform(0, 1), arg({5, 9, 6})}},
      {{-1}, {arg({3, 300}).uniform(0, 0.01), arg({3, 300})}},
      known(SoftmaxBackward{-1},
            {arg({2, 3}).listed({0.04201006613406605, 0.11419519938459449, 0.8437947344813395,
                                 0.5465493872661796, 0.12195165230972885, 0.3314989604240915}),
             arg({2, 3}).listed({1, 2, -1, 0.5, 1, 3})},
            {{0.06609839731993587, 0.2938692717096423, -0.3599676690295781, -0.4862776846708971,
              -0.0475273915023605, 0.5338050761732576}}),
      timed(SoftmaxBackward{-1}, {arg({4096, 512}), arg({4096, 512})}),
      bad(SoftmaxBackward{}, {arg({4, 6}), arg({4, 5})}, "ShapeError"),
  };
}

// --- log_softmax --------------------------------------------------------------------------------------------------

MetaList LogSoftmax::meta(Metas in) const { return row_meta(in, dim, dtypes, name); }

ShardingRule LogSoftmax::sharding(Metas in) const { return rowwise_rule(in, dim, name); }

void LogSoftmax::cpu(Tensors in, Outputs y) const { forward<Logarithm>(*this, in, y); }

Grads LogSoftmax::vjp(const Saved& s, const Grads& dy, Needs) const {
  return {call(LogSoftmaxBackward{dim}, {s.output(), dy[0]})};
}

std::vector<Sample<LogSoftmax>> LogSoftmax::samples() {
  const Arg x = arg({2, 3}).listed({1, 2, 4, 0.5, -1, 0});
  return {
      {{-1}, {arg({5, 7})}},
      {{0}, {arg({5, 6})}},
      {{1}, {arg({5, 9, 6})}},
      {{-1}, {arg({})}},
      {{-1}, {arg({3, 67})}},
      {{-1}, {arg({3, 300})}},
      known(LogSoftmax{-1}, {x},
            {{-3.1698460195562856, -2.1698460195562856, -0.16984601955628567, -0.6041306053367284,
              -2.1041306053367284, -1.1041306053367284}}),
      known(LogSoftmax{0}, {x},
            {{-0.4740769841801067, -0.048587351573741965, -0.01814992791780978, -0.9740769841801067,
              -3.048587351573742, -4.0181499279178094}}),
      timed(LogSoftmax{-1}, {arg({4096, 512})}),
      bad(LogSoftmax{3}, {arg({4, 6})}, "IndexError"),
      bad(LogSoftmax{}, {index_arg({4}, 0, 3)}, "DTypeError"),
  };
}

MetaList LogSoftmaxBackward::meta(Metas in) const { return gradient_meta(in, dim, dtypes, name); }

ShardingRule LogSoftmaxBackward::sharding(Metas in) const {
  return rowwise_rule(in, dim, name).linear({1});
}

void LogSoftmaxBackward::cpu(Tensors in, Outputs dx) const { backward<Logarithm>(*this, in, dx); }

Grads LogSoftmaxBackward::vjp(const Saved& s, const Grads& g, Needs needs) const {
  const Tensor p = exp(s.input(0));
  Grads out(2);
  if (needs[0]) out[0] = affine(mul(mul(g[0], p), sum(s.input(1), {dim}, true)), -1, 0);
  if (needs[1]) out[1] = sub(g[0], sum(mul(g[0], p), {dim}, true));
  return out;
}

std::vector<Sample<LogSoftmaxBackward>> LogSoftmaxBackward::samples() {
  return {
      {{-1}, {arg({5, 7}).uniform(-3, 0), arg({5, 7})}},
      {{0}, {arg({5, 6}).uniform(-3, 0), arg({5, 6})}},
      {{1}, {arg({5, 9, 6}).uniform(-3, 0), arg({5, 9, 6})}},
      {{-1}, {arg({3, 300}).uniform(-8, -4), arg({3, 300})}},
      known(LogSoftmaxBackward{-1},
            {arg({2, 3}).listed({-3.1698460195562856, -2.1698460195562856, -0.16984601955628567,
                                 -0.6041306053367284, -2.1041306053367284, -1.1041306053367284}),
             arg({2, 3}).listed({1, 2, -1, 0.5, 1, 3})},
            {{0.9159798677318679, 1.7716096012308111, -2.687589468962679, -1.9594722426978084,
              0.4512175646062202, 1.5082546780915882}}),
      timed(LogSoftmaxBackward{-1}, {arg({4096, 512}), arg({4096, 512})}),
      bad(LogSoftmaxBackward{}, {arg({4, 6}), arg({4, 5})}, "ShapeError"),
  };
}

}  // namespace tessera::op
