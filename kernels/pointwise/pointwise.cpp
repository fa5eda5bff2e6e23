// SPDX-License-Identifier: Apache-2.0
// Meta, sharding, samples and CPU kernels of the pointwise family.
#include "tessera/kernels/pointwise/pointwise.h"

#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise_loops_impl.h"
#include "tessera/kernels/strided_copy_impl.h"

namespace tessera::op {
namespace {

[[noreturn]] void wrong_dtypes(std::string_view name, Metas in, DTypeSet expected) {
  std::ostringstream given;
  for (size_t i = 0; i < in.size(); ++i) given << (i ? ", " : "") << in[i];
  fail<DTypeError>(name, "inputs must share one dtype of ", expected, ": given ", given.str(),
                   "; cast one of them");
}

Shape broadcast_all(std::string_view name, Metas in) {
  Shape out = in[0].shape;
  for (size_t i = 1; i < in.size(); ++i) {
    if (!(in[i].shape == out)) out = broadcast_shapes(out, in[i].shape, name);
  }
  return out;
}

template <class Op> constexpr double low_of() {
  if constexpr (requires { Op::kLow; }) return Op::kLow;
  else return -2;
}
template <class Op> constexpr double high_of() {
  if constexpr (requires { Op::kHigh; }) return Op::kHigh;
  else return 2;
}

// The attribute sets that samples of an op should cover.
template <class Op> std::vector<Op> variants() { return {Op{}}; }
template <> std::vector<Affine> variants() { return {{{}, 2.5, 0}, {{}, -0.5, 0}, {{}, 1, 3}}; }
template <> std::vector<Gelu> variants() { return {{{}, false}, {{}, true}}; }

}  // namespace

template <class Op, int N> MetaList Pointwise<Op, N>::meta(Metas in) const {
  const DType t = in[0].dtype;
  bool fits = Op::dtypes.has(t);
  for (size_t i = 1; i < N; ++i) fits &= in[i].dtype == t;
  if (__builtin_expect(!fits, false)) wrong_dtypes(Op::name, in, Op::dtypes);
  return {{broadcast_all(Op::name, in), Op::kBoolOutput ? DType::bool_ : t, in[0].device}};
}

template <class Op, int N> ShardingRule Pointwise<Op, N>::sharding(Metas in) const {
  ShardingRule r = pointwise_rule(in, broadcast_all(Op::name, in));
  const Op& self = static_cast<const Op&>(*this);
  if constexpr (requires { self.linear(in[0].dtype); }) {
    if (self.linear(in[0].dtype)) r.linear({0});
  }
  if constexpr (requires { self.monotone(); }) {
    self.monotone() > 0 ? r.monotone_up() : r.monotone_down();
  }
  if (Op::kLinear == Pointwise::kLinearAll) r.linear_all(0, N);
  for (int i = 0; i < N && Op::kLinear != Pointwise::kLinearAll; ++i) {
    if (Op::kLinear >> i & 1) r.linear({i});
  }
  if (Op::kMonotone > 0) r.monotone_up();
  if (Op::kMonotone < 0) r.monotone_down();
  return r;
}

// Bytes alone, so that all dtypes of one size share a loop, and transposed ones go block by block.
template <> void Pointwise<Copy, 1>::cpu(Tensors in, Outputs y) const { strided_copy(y[0], in[0]); }

template <class Op, int N> void Pointwise<Op, N>::cpu(Tensors in, Outputs y) const {
  const Op& self = static_cast<const Op&>(*this);
  dispatch<Op::dtypes>(in[N - 1].dtype(), [&]<class T>() {
    if constexpr (N == 1) map_elements<T, T>(self, y[0], in);
    else if constexpr (N == 2 && Op::kBoolOutput) map_elements<bool, T, T>(self, y[0], in);
    else if constexpr (N == 2) map_elements<T, T, T>(self, y[0], in);
    else map_elements<T, bool, T, T>(self, y[0], in);
  });
}

template <class Op, int N> std::vector<Sample<Op>> Pointwise<Op, N>::samples() {
  std::vector<Sample<Op>> all;
  const auto fill = [](Shape s) {
    const Arg a = arg(s);
    return low_of<Op>() > -2 ? a.uniform(low_of<Op>(), high_of<Op>()) : a;
  };
  for (const Op& v : variants<Op>()) {
    if constexpr (N == 1) {
      all.push_back({v, {fill({5, 7})}});
      all.push_back({v, {fill({})}});
      all.push_back({v, {fill({3, 1, 6})}});
    } else {
      // Few whole numbers give comparisons something equal to find.
      const auto first = [&](Shape s) {
        Arg a = arg(s);
        return Op::kBoolOutput ? a.whole(-2, 3) : a;
      };
      // Divisors keep away from zero, where no finite difference is fair.
      const auto second = [&](Shape s) {
        return Op::name == std::string_view("div") ? arg(s).uniform(0.5, 2) : first(s);
      };
      all.push_back({v, {first({5, 7}), second({5, 7})}});
      all.push_back({v, {first({5, 1, 6}), second({7, 1})}});
      all.push_back({v, {first({}), second({5})}});
    }
  }
  if constexpr (N == 1) {
    all.push_back(timed(variants<Op>()[0], {fill({1024, 1024})}));
    if (!Op::dtypes.has(DType::bool_))
      all.push_back(bad(Op{}, {arg({3}).as(DType::bool_)}, "DTypeError"));
    else all.push_back(bad(Op{}, {no_arg()}, "UsageError"));
  } else {
    all.push_back(timed(Op{}, {arg({1024, 1024}), arg({1024, 1024})}));
    all.push_back(bad(Op{}, {arg({2, 3}), arg({4, 5})}, "ShapeError"));
    all.push_back(bad(Op{}, {arg({3}).as(DType::f32), arg({3}).as(DType::bf16)}, "DTypeError"));
  }
  return all;
}

Tensor Silu::grad(const Saved& s, const Tensor& dy) {
  // sigma (1 + x (1 - sigma)); sigma by tanh, which overflows for no x.
  const Tensor& x = s.input(0);
  const Tensor sigma = affine(tanh(affine(x, 0.5, 0)), 0.5, 0.5);
  return mul(dy, mul(sigma, affine(mul(x, affine(sigma, -1, 1)), 1, 1)));
}

Tensor Gelu::grad(const Saved& s, const Tensor& dy) const {
  const Tensor& x = s.input(0);
  if (!tanh_approximation) {
    const Tensor cdf = affine(erf(affine(x, 0.70710678118654752, 0)), 0.5, 0.5);
    const Tensor density = affine(exp(affine(mul(x, x), -0.5, 0)), 0.3989422804014327, 0);
    return mul(dy, add(cdf, mul(x, density)));
  }
  const Tensor x2 = mul(x, x);
  const Tensor t = tanh(affine(mul(x, affine(x2, 0.044715, 1)), 0.79788456080286536, 0));
  const Tensor dt = mul(affine(mul(t, t), -1, 1),
                        affine(x2, 3 * 0.044715 * 0.79788456080286536, 0.79788456080286536));
  return mul(dy, affine(add(affine(t, 1, 1), mul(x, dt)), 0.5, 0));
}

ShardingRule Cast::sharding(Metas in) const {
  ShardingRule r = pointwise_rule(in, in[0].shape);
  if (is_floating(to)) r.monotone_up();  // integers wrap
  const DType from = in[0].dtype;        // a wider float holds every value of a narrower one
  const bool exact =
      from == to || (is_floating(from) && is_floating(to) && item_size(to) > item_size(from));
  if (exact) return r.linear({0});
  return r.stricter_because("rounding is not linear");
}

void Cast::cpu(Tensors in, Outputs y) const {
  dispatch<kAllDTypes>(in[0].dtype(), [&]<class From>() {
    dispatch<kAllDTypes>(to, [&]<class To>() {
      struct Convert {
        TESSERA_INLINE To f(compute_t<From> x) const {
          if constexpr (is_floating(dtype_of<To>) && sizeof(To) < 4)
            return To(static_cast<float>(x));
          else return static_cast<To>(x);
        }
      };
      map_elements<To, From>(Convert{}, y[0], in);
    });
  });
}

std::vector<Sample<Cast>> Cast::samples() {
  std::vector<Sample<Cast>> all;
  for (DType to : {DType::f32, DType::bf16, DType::f64, DType::f16, DType::f8_e4m3, DType::f8_e5m2,
                   DType::i64, DType::i32, DType::u8, DType::bool_}) {
    const bool narrow = to == DType::u8 || to == DType::bool_;
    all.push_back({Cast{{}, to}, {narrow ? arg({5, 7}).uniform(0, 2) : arg({5, 7})}});
  }
  all.push_back(timed(Cast{{}, DType::bf16}, {arg({1024, 1024})}));
  all.push_back(bad(Cast{}, {no_arg()}, "UsageError"));
  return all;
}

MetaList Where::meta(Metas in) const {
  if (in[0].dtype != DType::bool_)
    fail<DTypeError>(name, "the condition must be bool: given ", in[0]);
  const TensorMeta* rest[] = {&in[1], &in[2]};
  if (in[1].dtype != in[2].dtype || !dtypes.has(in[1].dtype))
    wrong_dtypes(name, Metas(rest, 2), dtypes);
  return {{broadcast_all(name, in), in[1].dtype, in[1].device}};
}

ShardingRule Where::sharding(Metas in) const {
  return pointwise_rule(in, broadcast_all(name, in)).linear({1, 2});
}

Grads Where::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  const Tensor zero = zeros_like(dy[0]);
  Grads g(3);
  if (needs[1]) g[1] = sum_to(where(s.input(0), dy[0], zero), s.input_meta(1).shape);
  if (needs[2]) g[2] = sum_to(where(s.input(0), zero, dy[0]), s.input_meta(2).shape);
  return g;
}

std::vector<Sample<Where>> Where::samples() {
  return {
      {Where{}, {bool_arg({5, 7}), arg({5, 7}), arg({5, 7})}},
      {Where{}, {bool_arg({7}), arg({5, 1}), arg({})}},
      bad(Where{}, {arg({3}).as(DType::f32), arg({3}), arg({3})}, "DTypeError"),
      bad(Where{}, {bool_arg({2}), arg({3}), arg({3})}, "ShapeError"),
      timed(Where{}, {bool_arg({1024, 1024}), arg({1024, 1024}), arg({1024, 1024})}),
  };
}

// Instantiates the family for every op of the list, so that the list is the only place that names
// them.
template <class List> struct Instantiate;
template <class... Ops> struct Instantiate<OpList<Ops...>> {
  template <class Op> static auto members() {
    return std::tuple{&Op::meta, &Op::sharding, &Op::cpu, &Op::samples};
  }
  static auto all() { return std::tuple{members<Ops>()...}; }
};
template struct Instantiate<pointwise_ops>;

}  // namespace tessera::op
