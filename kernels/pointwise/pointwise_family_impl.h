// SPDX-License-Identifier: Apache-2.0
// Meta, sharding, samples and the CPU call of the pointwise family, as templates: each list of ops
// instantiates them in a file of its own.
#pragma once

#include "tessera/kernels/pointwise/pointwise_family.h"
#include "tessera/kernels/pointwise/pointwise_loops_impl.h"

#include <span>
#include <sstream>
#include <utility>

namespace tessera::op {

/// Defined in pointwise.cpp.
[[noreturn]] void wrong_pointwise_dtypes(std::string_view name, Metas in, DTypeSet expected,
                                         int condition);
/// ValueError where an element of `b` is 0 and its dtype has no infinity.
void check_divisors(std::string_view name, const Tensor& b);
Shape broadcast_inputs(std::string_view name, Metas in);

/// The attribute sets that samples of an op cover; overloads beside an op's list add to it.
template <class Op> struct Variants {
  static std::vector<Op> all() { return {Op{}}; }
};
template <class Of> struct Variants<Backward<Of>> {
  static std::vector<Backward<Of>> all() {
    std::vector<Backward<Of>> backward;
    for (const Of& of : Variants<Of>::all()) backward.push_back({{}, of});
    return backward;
  }
};

/// The op whose values the first input of an op's samples has.
template <class Op> struct SourceOf { using type = Op; };
template <class Of> struct SourceOf<Backward<Of>> { using type = Of; };

template <class Op> Arg first_arg(const Shape& s) {
  using Source = typename SourceOf<Op>::type;
  if constexpr (requires { Source::kFirst; }) {
    return arg(s).listed({Source::kFirst.begin(), Source::kFirst.end()});
  } else if constexpr (requires { Source::kLow; }) {
    return arg(s).uniform(Source::kLow, Source::kHigh);
  } else {
    // Few whole numbers give comparisons something equal to find.
    return Op::kBoolOutput && Op::dtypes.has(DType::i64) ? arg(s).whole(-2, 3) : arg(s);
  }
}
template <class Op> Arg second_arg(const Shape& s) {
  if constexpr (Op::kBoolInput == 1) return bool_arg(s);
  else if constexpr (requires { Op::kSecond; })
    return arg(s).listed({Op::kSecond.begin(), Op::kSecond.end()});
  else if constexpr (requires { Op::kSecondLow; })
    return arg(s).uniform(Op::kSecondLow, Op::kSecondHigh);
  else return Op::kBoolOutput ? first_arg<Op>(s) : arg(s);
}
template <class Op> Arg third_arg(const Shape& s) {
  if constexpr (requires { Op::kThird; })
    return arg(s).listed({Op::kThird.begin(), Op::kThird.end()});
  else return arg(s);
}
template <class Op> std::vector<Arg> args_of(const Shape& a, const Shape& b, const Shape& c) {
  if constexpr (Op::kInputs == 1) return {first_arg<Op>(a)};
  else if constexpr (Op::kInputs == 2) return {first_arg<Op>(a), second_arg<Op>(b)};
  else return {first_arg<Op>(a), second_arg<Op>(b), third_arg<Op>(c)};
}

/// The known values of an op's samples: its own, or those that the op gives its fused gradient.
template <class Op> struct KnownOf {
  static constexpr std::span<const double[Op::kInputs + 1]> rows() {
    if constexpr (requires { Op::kKnown; }) return Op::kKnown;
    else return {};
  }
};
template <class Of> struct KnownOf<Backward<Of>> {
  static constexpr std::span<const double[3]> rows() {
    if constexpr (requires { Of::kKnownBackward; }) return Of::kKnownBackward;
    else return {};
  }
};
template <class Op> Sample<Op> known_row(const Op& op, const double (&row)[Op::kInputs + 1]) {
  std::vector<Arg> in;
  for (int i = 0; i < Op::kInputs; ++i) {
    const Arg a = i == Op::kBoolInput ? arg({}).as(DType::bool_) : arg({});
    in.push_back(a.listed({row[i]}));
  }
  return known(op, in, {{row[Op::kInputs]}});
}

template <class Op, int N> MetaList Pointwise<Op, N>::meta(Metas in) const {
  constexpr size_t kValue = Op::kBoolInput == 0 ? 1 : 0;
  const DType t = in[kValue].dtype;
  bool fits = Op::dtypes.has(t);
  for (size_t i = 0; i < N; ++i)
    fits &= in[i].dtype == (static_cast<int>(i) == Op::kBoolInput ? DType::bool_ : t);
  if (__builtin_expect(!fits, false))
    wrong_pointwise_dtypes(Op::name, in, Op::dtypes, Op::kBoolInput);
  if constexpr (requires { Op::kSameShape; }) {
    if (!(in[0].shape == in[1].shape))
      fail<ShapeError>(Op::name, "operands must have one shape: given ", in[0], " and ", in[1]);
  }
  return {{broadcast_inputs(Op::name, in), Op::kBoolOutput ? DType::bool_ : t, in[0].device}};
}

template <class Op, int N> ShardingRule Pointwise<Op, N>::sharding(Metas in) const {
  ShardingRule r = pointwise_rule(in, broadcast_inputs(Op::name, in));
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

template <class Op, int N> void Pointwise<Op, N>::cpu(Tensors in, Outputs y) const {
  const Op& self = static_cast<const Op&>(*this);
  const auto run = [&](const auto& op) {
    dispatch<Op::dtypes>(in[Op::kBoolInput == 0 ? 1 : 0].dtype(), [&]<class T>() {
      using Out = std::conditional_t<Op::kBoolOutput, bool, T>;
      // Predicates read truths as bytes: g++ vectorises no negation of bool.
      using In = std::conditional_t<Op::kBoolOutput && std::is_same_v<T, bool>, uint8_t, T>;
      [&]<size_t... I>(std::index_sequence<I...>) {
        map_elements<Out, std::conditional_t<static_cast<int>(I) == Op::kBoolInput, bool, In>...>(
            op, y[0], in);
      }
      (std::make_index_sequence<N>{});
    });
  };
  // An op whose attributes choose among formulas gives each as a type, so that loops have no
  // choice.
  if constexpr (requires { self.visit(run); }) self.visit(run);
  else run(self);
}

template <class Op, int N> std::vector<Sample<Op>> Pointwise<Op, N>::samples() {
  std::vector<Sample<Op>> all;
  const auto variants = Variants<Op>::all();
  constexpr bool kSame = N == 1 || requires { Op::kSameShape; };
  for (const Op& v : variants) {
    all.push_back({v, args_of<Op>({5, 7}, {5, 7}, {5, 7})});
    if constexpr (kSame) {
      all.push_back({v, args_of<Op>({}, {}, {})});
      all.push_back({v, args_of<Op>({3, 1, 6}, {3, 1, 6}, {})});
    } else {
      all.push_back({v, args_of<Op>({5, 1, 6}, {7, 1}, {5, 7, 6})});
      all.push_back({v, args_of<Op>({}, {5}, {5})});
    }
  }
  all.push_back(timed(variants[0], args_of<Op>({1024, 1024}, {1024, 1024}, {1024, 1024})));
  if constexpr (N == 1) {
    if (!Op::dtypes.has(DType::bool_))
      all.push_back(bad(variants[0], {arg({3}).as(DType::bool_)}, "DTypeError"));
    else all.push_back(bad(variants[0], {no_arg()}, "UsageError"));
  } else {
    all.push_back(bad(variants[0], args_of<Op>({2, 3}, {4, 5}, {4, 5}), "ShapeError"));
    auto mixed = args_of<Op>({3}, {3}, {3});
    mixed[0] = arg({3}).as(DType::f32);
    mixed[1] = arg({3}).as(DType::bf16);
    all.push_back(bad(variants[0], mixed, "DTypeError"));
  }
  const auto rows = KnownOf<Op>::rows();
  for (size_t i = 0; i < rows.size(); ++i)
    all.push_back(known_row(variants[i % variants.size()], rows[i]));
  return all;
}

/// Instantiates the family for every op of a list, so that the list is the only place that names
/// them.
template <class List> struct InstantiatePointwise;
template <class... Ops> struct InstantiatePointwise<OpList<Ops...>> {
  template <class Op> static auto members() {
    // An op with a rule of its own may call the family's from another file.
    return std::tuple{&Op::meta, &Op::sharding, &Pointwise<Op, Op::kInputs>::sharding, &Op::cpu,
                      &Op::samples};
  }
  static auto all() { return std::tuple{members<Ops>()...}; }
};

}  // namespace tessera::op
