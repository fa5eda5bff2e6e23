// SPDX-License-Identifier: Apache-2.0
// Checks, sharding, gradients and CPU kernels of swiglu, with a shorter loop where it has no limit.
#include "tessera/kernels/swiglu/swiglu.h"

#include "tessera/core/parallel.h"
#include "tessera/core/scopes.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/swiglu/swiglu_impl.h"

namespace tessera::op {
namespace {

constexpr int64_t kGrain = 8192;

void check(std::string_view name, DTypeSet dtypes, Metas in, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (in[i].dtype != in[0].dtype || !dtypes.has(in[i].dtype)) {
      fail<DTypeError>(name, "operands must share one dtype of ", dtypes, ": gate is ", in[0],
                       ", operand ", i, " is ", in[i]);
    }
    if (!(in[i].shape == in[0].shape))
      fail<ShapeError>(name, "operands must have one shape: gate is ", in[0], ", operand ", i,
                       " is ", in[i]);
  }
}

void check_limit(std::string_view name, double limit, const TensorMeta& gate) {
  if (!(limit >= 0))
    fail<ValueError>(name, "limit must not be negative, 0 is none: given ", limit, " for ", gate);
}

template <class Op> bool plain(const Op& op) {
  return op.limit == 0 && op.alpha == 1 && op.up_shift == 0;
}

}  // namespace

MetaList Swiglu::meta(Metas in) const {
  check(name, dtypes, in, 2);
  check_limit(name, limit, in[0]);
  return {in[0]};
}

ShardingRule Swiglu::sharding(Metas in) const {
  ShardingRule r = pointwise_rule(in, in[0].shape);
  return limit == 0 && up_shift == 0 ? r.linear({1}) : r;
}

void Swiglu::cpu(Tensors in, Outputs y) const {
  const NoGrad guard;
  const Tensor gate = contiguous(in[0].detach()), up = contiguous(in[1].detach());
  dispatch<kFloats>(gate.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const T *g_data = gate.data<T>(), *u_data = up.data<T>();
    T* out = y[0].data<T>();
    const Gated<C> gated(*this);
    const bool simple = plain(*this);
    parallel_for(gate.numel(), kGrain, [&](int64_t begin, int64_t end) {
      simd([&]() TESSERA_LAMBDA {
        const T* __restrict g = g_data, * __restrict u = u_data;
        T* __restrict o = out;
        if (!simple) {
          const Gated<C> f = gated;
#pragma GCC ivdep
          for (int64_t i = begin; i < end; ++i) {
            const C a = f.gate(static_cast<C>(g[i]));
            o[i] = static_cast<T>(a * vmath::sigmoid(f.alpha * a) * f.up(static_cast<C>(u[i])));
          }
          return;
        }
#pragma GCC ivdep
        for (int64_t i = begin; i < end; ++i) {
          const C a = static_cast<C>(g[i]);
          o[i] = static_cast<T>(a * vmath::sigmoid(a) * static_cast<C>(u[i]));
        }
      });
    });
  });
}

Grads Swiglu::vjp(const Saved& s, const Grads& dy, Needs) const {
  auto [dgate, dup] = call(SwigluBackward{limit, alpha, up_shift}, {s.input(0), s.input(1), dy[0]});
  return {dgate, dup};
}

std::vector<Sample<Swiglu>> Swiglu::samples() {
  const Arg gate = arg({3}).listed({1, -2, 3}), up = arg({3}).listed({0.5, 2, -3});
  return {
      {Swiglu{}, {arg({5, 7}), arg({5, 7})}},
      {Swiglu{}, {arg({2, 5, 3}), arg({2, 5, 3})}},
      {Swiglu{}, {arg({}), arg({})}},
      // Multiples of 1/8 stay clear of the limit, where no difference quotient is a gradient.
      {Swiglu{0.7, 1.702, 1}, {arg({5, 7}).distinct(), arg({5, 7}).distinct()}},
      known(Swiglu{}, {gate, up}, {{0.36552928931500245, -0.4768116880884702, -8.5731671414019}}),
      known(Swiglu{2.5, 1.702, 1}, {gate, up},
            {{1.268693648899232, -0.19302413056737558, -3.6975207524271454}}),
      timed(Swiglu{}, {arg({8, 512, 768}), arg({8, 512, 768})}),
      timed(Swiglu{7, 1.702, 1}, {arg({8, 512, 768}), arg({8, 512, 768})}),
      bad(Swiglu{}, {arg({5, 7}), arg({5, 6})}, "ShapeError"),
      bad(Swiglu{.limit = -1}, {arg({5}), arg({5})}, "ValueError"),
      bad(Swiglu{}, {arg({5}).as(DType::f32), arg({5}).as(DType::f16)}, "DTypeError"),
  };
}

MetaList SwigluBackward::meta(Metas in) const {
  check(name, dtypes, in, 3);
  check_limit(name, limit, in[0]);
  return {in[0], in[1]};
}

ShardingRule SwigluBackward::sharding(Metas in) const {
  return pointwise_rule(in, in[0].shape, 2).linear({2});
}

void SwigluBackward::cpu(Tensors in, Outputs y) const {
  const NoGrad guard;
  const Tensor gate = contiguous(in[0].detach()), up = contiguous(in[1].detach()),
               dy = contiguous(in[2].detach());
  dispatch<kFloats>(gate.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const T *g_data = gate.data<T>(), *u_data = up.data<T>(), *d_data = dy.data<T>();
    T *dg_data = y[0].data<T>(), *du_data = y[1].data<T>();
    const Gated<C> gated(*this);
    const bool simple = plain(*this);
    parallel_for(gate.numel(), kGrain, [&](int64_t begin, int64_t end) {
      simd([&]() TESSERA_LAMBDA {
        const T* __restrict g = g_data, * __restrict u = u_data, * __restrict d = d_data;
        T* __restrict dg = dg_data, * __restrict du = du_data;
        if (!simple) {
          const Gated<C> f = gated;
#pragma GCC ivdep
          for (int64_t i = begin; i < end; ++i) {
            const C a = static_cast<C>(g[i]), b = static_cast<C>(u[i]), x = f.gate(a),
                    grad = static_cast<C>(d[i]), sigma = vmath::sigmoid(f.alpha * x);
            const C by_up = grad * x * sigma,
                    by_gate = grad * f.up(b) * sigma * (C(1) + f.alpha * x * (C(1) - sigma));
            du[i] = static_cast<T>(b > f.limit ? C(0) : (b < -f.limit ? C(0) : by_up));
            dg[i] = static_cast<T>(a > f.limit ? C(0) : by_gate);
          }
          return;
        }
#pragma GCC ivdep
        for (int64_t i = begin; i < end; ++i) {
          const C a = static_cast<C>(g[i]), grad = static_cast<C>(d[i]), sigma = vmath::sigmoid(a),
                  swish = a * sigma;
          du[i] = static_cast<T>(grad * swish);
          dg[i] = static_cast<T>(grad * static_cast<C>(u[i]) * (sigma + swish * (C(1) - sigma)));
        }
      });
    });
  });
}

std::vector<Sample<SwigluBackward>> SwigluBackward::samples() {
  const Arg gate = arg({3}).listed({1, -2, 3}), up = arg({3}).listed({0.5, 2, -3}),
            dy = arg({3}).listed({1, 2, 0.5});
  return {
      {SwigluBackward{}, {arg({5, 7}), arg({5, 7}), arg({5, 7})}},
      {SwigluBackward{}, {arg({2, 5, 3}), arg({2, 5, 3}), arg({2, 5, 3})}},
      {SwigluBackward{0.7, 1.702, 1},
       {arg({5, 7}).distinct(), arg({5, 7}).distinct(), arg({5, 7})}},
      known(SwigluBackward{}, {gate, up, dy},
            {{0.46383525593574343, -0.36313699513958186, -1.632156159022754},
             {0.7310585786300049, -0.4768116880884702, 1.4288611902336499}}),
      known(SwigluBackward{2.5, 1.702, 1}, {gate, up, dy},
            {{1.6016694098345012, -0.4428921258512516, 0},
             {0.8457957659328212, -0.12868275371158372, 0}}),
      timed(SwigluBackward{}, {arg({8, 512, 768}), arg({8, 512, 768}), arg({8, 512, 768})}),
      bad(SwigluBackward{}, {arg({5, 7}), arg({5, 7}), arg({5, 6})}, "ShapeError"),
      bad(SwigluBackward{.limit = -1}, {arg({5}), arg({5}), arg({5})}, "ValueError"),
  };
}

}  // namespace tessera::op
