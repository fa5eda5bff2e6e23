// SPDX-License-Identifier: Apache-2.0
// adamw_ on CPU: decay, both moments and the step in one pass over the four lists.
#include "tessera/kernels/adamw/adamw.h"

#include "tessera/core/message.h"
#include "tessera/core/scopes.h"
#include "tessera/kernels/adamw/stochastic_rounding_impl.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/shared/piece_index_impl.h"
#include "tessera/kernels/shared/step_blocks_impl.h"
#include "tessera/kernels/shared/tensor_list_impl.h"

#include <array>
#include <cmath>
#include <type_traits>

namespace tessera::op {
namespace {

constexpr std::array<std::string_view, 4> kRoles{"parameter", "gradient", "first moment",
                                                 "second moment"};
constexpr std::array<std::string_view, 4> kScalars{"lr", "step", "skip", "grad_factor"};
constexpr size_t kSkip = 2, kFactor = 3, kLists = AdamW::first_list;  // places of inputs
constexpr DTypeSet kNarrow = dtypes_of(DType::f32, DType::bf16);

// The step's constants, rounded once to the parameters' type.
template <class T> struct StepConstants {
  T decay, beta1, rest1, beta2, rest2, scale2, eps, step_size, factor;

  StepConstants(const AdamW& op, double lr, double step, double grad_factor)
      : decay(static_cast<T>(1 - lr * op.weight_decay)),
        beta1(static_cast<T>(op.beta1)),
        rest1(static_cast<T>(1 - op.beta1)),
        beta2(static_cast<T>(op.beta2)),
        rest2(static_cast<T>(1 - op.beta2)),
        scale2(static_cast<T>(1 / std::sqrt(1 - std::pow(op.beta2, step)))),
        eps(static_cast<T>(op.eps)),
        step_size(static_cast<T>(lr / (1 - std::pow(op.beta1, step)))),
        factor(static_cast<T>(grad_factor)) {}

  TESSERA_INLINE void update(T& p, T g, T& first, T& second) const {
    const T m = beta1 * first + rest1 * g;
    const T v = beta2 * second + rest2 * (g * g);
    first = m;
    second = v;
    p = p * decay - step_size * (m / (std::sqrt(v) * scale2 + eps));
  }
};

// What is bf16 is rounded by `sixteen` random bits, if stochastically.
template <class T, bool kStochastic, class C> TESSERA_INLINE T rounded(C x, uint32_t sixteen) {
  if constexpr (kStochastic && std::is_same_v<T, bf16>) return rng::round_stochastic(x, sixteen);
  else return static_cast<T>(x);
}

// n elements, rounded by the words of elements `word` and on.
template <class P, class G, class M, bool kStochastic>
void step_run(const StepConstants<compute_t<P>>& constants, int64_t n, P* parameter,
              const G* gradient, M* first, M* second, rng::WordKey key = {}, uint64_t word = 0) {
  simd([&]() TESSERA_LAMBDA {
    using C = compute_t<P>;
    const StepConstants<C> c = constants;
    P* __restrict p = parameter;
    const G* __restrict g = gradient;
    M* __restrict m = first;
    M* __restrict v = second;
    const auto from = static_cast<uint32_t>(word);
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t bits = kStochastic ? rng::word(key, from + static_cast<uint32_t>(i)) : 0;
      C w = static_cast<C>(p[i]), one = static_cast<C>(m[i]), two = static_cast<C>(v[i]);
      c.update(w, static_cast<C>(scaled(g[i], c.factor)), one, two);
      p[i] = rounded<P, kStochastic>(w, rng::parameter_bits(bits));
      m[i] = rounded<M, kStochastic>(one, rng::first_bits(bits));
      v[i] = rounded<M, kStochastic>(two, rng::second_bits(bits));
    }
  });
}

// Elements [begin, end) of an entry; with a key rounded stochastically.
template <class P, class G, class M>
void step_entry(const StepConstants<compute_t<P>>& constants, const StepEntries<4>::Entry& entry,
                int64_t begin, int64_t end, const RngKey* key, const PieceIndex& piece) {
  P* p = entry[0].data<P>();
  const G* g = entry[1].data<G>();
  M *m = entry[2].data<M>(), *v = entry[3].data<M>();
  if constexpr (std::is_same_v<P, bf16> || std::is_same_v<M, bf16>) {
    rng::WordKey words;
    uint64_t next = 0;  // the first element that the key is not for
    for (int64_t at = begin, n = 0; key && at < end; at += n) {
      const uint64_t word = piece.global(at);
      if (word >= next) {
        words = rng::word_key(*key, word);
        next = ((word >> 32) + 1) << 32;
      }
      n = std::min({end - at, piece.left(at), static_cast<int64_t>(next - word)});
      step_run<P, G, M, true>(constants, n, p + at, g + at, m + at, v + at, words, word);
    }
    if (key) return;
  }
  step_run<P, G, M, false>(constants, end - begin, p + begin, g + begin, m + begin, v + begin);
}

// What the gradient and the moments of a parameter may be.
void check_dtypes(std::string_view name, size_t i, const TensorMeta& p, const TensorMeta& g,
                  const TensorMeta& m, const TensorMeta& v) {
  if (g.dtype != p.dtype && (p.dtype == DType::f64 || g.dtype != DType::f32))
    fail<DTypeError>(name, "gradient ", i, " must have the parameter's dtype, or f32: given ", g,
                     ", the parameter is ", p);
  const bool known = p.dtype == DType::f64 ? m.dtype == DType::f64
                                           : m.dtype == DType::f32 || m.dtype == DType::bf16;
  if (!known || v.dtype != m.dtype)
    fail<DTypeError>(name, "the moments of parameter ", i, " must both be ",
                     p.dtype == DType::f64 ? "f64" : "f32, or both bf16", ": given ", m, " and ", v,
                     ", the parameter is ", p);
}

}  // namespace

std::ostream& operator<<(std::ostream& os, const Streams& s) {
  os << '[';
  for (size_t i = 0; i < s.of.size(); ++i) os << (i ? "," : "") << s.of[i];
  return os << ']';
}

MetaList AdamW::meta(Metas in) const {
  if (in.size() < kLists || (in.size() - kLists) % 4 != 0) {
    fail<UsageError>(name,
                     "expected lr, step, skip, grad_factor and four lists of equal length: given ",
                     counted(in.size(), "input"));
  }
  if (!(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1 && eps >= 0)) {
    fail<ValueError>(name, "expected 0 <= beta < 1 and eps >= 0: given beta1 ", beta1, ", beta2 ",
                     beta2, ", eps ", eps);
  }
  for (size_t i = 0; i < kScalars.size(); ++i) {
    if (i == kFactor && !in.has(i)) continue;
    const DType expected = i == kSkip ? DType::bool_ : DType::f64;
    if (in[i].dtype != expected)
      fail<DTypeError>(name, kScalars[i], " must be ", expected, ": given ", in[i]);
    if (in[i].shape.rank() != 0)
      fail<ShapeError>(name, kScalars[i], " must be 0-dim: given ", in[i]);
  }
  const size_t n = (in.size() - kLists) / 4;
  if (!streams.of.empty() && streams.of.size() != n)
    fail<UsageError>(name, "expected one stream per parameter, or none: given ", streams.of.size(),
                     " for ", counted(n, "parameter"));
  for (size_t i = 0; i < n; ++i) {
    for (size_t role = 0; role < 4; ++role) {
      if (!in.has(kLists + role * n + i))
        fail<UsageError>(name, kRoles[role], " ", i,
                         " is undefined: step only parameters that have a gradient");
    }
    const TensorMeta& p = in[kLists + i];
    if (!dtypes.has(p.dtype))
      fail<DTypeError>(name, "parameter ", i, " must be of ", dtypes, ": given ", p);
    for (size_t role = 1; role < 4; ++role) {
      const TensorMeta& other = in[kLists + role * n + i];
      if (!(other.shape == p.shape))
        fail<ShapeError>(name, kRoles[role], " ", i, " must have the parameter's shape: given ",
                         other, ", expected ", p);
    }
    const auto of = [&](size_t role) -> const TensorMeta& { return in[kLists + role * n + i]; };
    check_dtypes(name, i, p, of(1), of(2), of(3));
  }
  return {};
}

ShardingRule AdamW::sharding(Metas in) const {
  const size_t n = (in.size() - kLists) / 4;
  ShardingRule r;
  const auto entries = own_factors(r, in, kLists, n);
  for (size_t i = 0; i < kLists; ++i) r.operand({});
  for (size_t i = 0; i < 4 * n; ++i) r.operand(entries[i % n]);
  r.outputs_from_here();
  for (size_t i = 0; i < 3 * n; ++i) r.operand(entries[i % n]);
  return r;
}

AdamW AdamW::local(const Piece& piece) const {
  AdamW op = *this;
  op.places.clear();
  if (streams.of.empty()) return op;
  for (size_t i = 0; i < streams.of.size(); ++i) {
    PiecePlace& place = op.places.emplace_back();
    for (const Piece::Range& r : piece.operands[kLists + i]) {
      place.start.push_back(r.begin);
      place.whole.push_back(r.global);
    }
  }
  return op;
}

void AdamW::cpu(Tensors in, Outputs) const {
  const double lr = *in[0].data<double>(), step = *in[1].data<double>();
  if (!(step >= 1)) fail<ValueError>(name, "steps count from 1: given ", step);
  if (*in[kSkip].data<bool>()) return;
  const size_t n = (in.size() - kLists) / 4;
  const StepEntries<4> entries(in.subspan(kLists));
  std::vector<PieceIndex> pieces;
  std::vector<RngKey> keys;
  for (size_t i = 0; i < n; ++i) {
    if (streams.of.empty()) continue;
    const Tensor& p = entries[i][0];
    keys.push_back(rng::at_step({seed, streams.of[i]}, static_cast<uint64_t>(step)));
    pieces.push_back(places.empty() ? PieceIndex(p.numel())
                                    : PieceIndex(p.shape(), places[i].start, places[i].whole));
  }
  const double factor = in[kFactor].defined() ? *in[kFactor].data<double>() : 1;
  const StepConstants<float> single(*this, lr, step, factor);
  const StepConstants<double> exact(*this, lr, step, factor);
  ListChunks(in.subspan(kLists, n), [](size_t) {
    return false;
  }).for_each([&](int64_t, size_t i, int64_t begin, int64_t end) {
    const auto& e = entries[i];
    end = std::min(end, e[0].numel());
    const bool keyed = !keys.empty();
    const RngKey* key = keyed ? &keys[i] : nullptr;
    const PieceIndex piece = keyed ? pieces[i] : PieceIndex();
    if (e[0].dtype() == DType::f64)
      return step_entry<double, double, double>(exact, e, begin, end, nullptr, piece);
    dispatch<kNarrow>(e[0].dtype(), [&]<class P>() {
      dispatch<kNarrow>(e[1].dtype(), [&]<class G>() {
        dispatch<kNarrow>(e[2].dtype(), [&]<class M>() {
          if constexpr (std::is_same_v<P, bf16> || std::is_same_v<G, float>)
            step_entry<P, G, M>(single, e, begin, end, key, piece);
        });
      });
    });
  });
  entries.done({0, 2, 3});
}

std::vector<Sample<AdamW>> AdamW::samples() {
  const Arg go = arg({}).listed({0}).as(DType::bool_), stay = arg({}).listed({1}).as(DType::bool_);
  const Arg no_factor = no_arg();
  const auto factor_of = [](double v) { return arg({}).listed({v}).as(DType::f64); };
  const auto of = [&](std::initializer_list<Shape> shapes, double step, const Arg& factor) {
    std::vector<Arg> in{arg({}).value(0.01).as(DType::f64), arg({}).value(step).as(DType::f64), go,
                        factor};
    for (int role = 0; role < 4; ++role) {
      for (const Shape& s : shapes) in.push_back(role == 3 ? arg(s).uniform(0, 1) : arg(s));
    }
    return in;
  };
  // Parameter, gradient, first and second moment of two shapes, each role of its own dtype.
  const auto mixed_of = [&](DType p, DType g, DType m, const Arg& factor) {
    std::vector<Arg> in{arg({}).value(8).as(DType::f64), arg({}).value(3).as(DType::f64), go,
                        factor};
    const DType types[] = {p, g, m, m};
    for (int role = 0; role < 4; ++role) {
      for (const Shape& s : {Shape{1200}, Shape{5, 6}})
        in.push_back((role == 3 ? arg(s).uniform(0, 1) : arg(s)).as(types[role]));
    }
    return in;
  };
  auto undefined = of({{3}, {4}}, 1, no_factor);
  undefined[kLists + 3] = no_arg();
  auto mixed = of({{3}}, 1, no_factor);
  mixed[kLists + 1] = arg({3}).as(DType::bf16);
  auto mismatched = of({{3}}, 1, no_factor);
  mismatched[kLists + 2] = arg({4});
  auto integers = of({{3}}, 1, no_factor);
  for (size_t i = kLists; i < kLists + 4; ++i) integers[i] = arg({3}).as(DType::i64);
  auto narrow_factor = of({{3}}, 1, arg({}).value(0.5).as(DType::f32));
  auto wide_factor = of({{3}}, 1, arg({1}).value(0.5).as(DType::f64));
  const auto pair = [](double a, double b) { return arg({2}).listed({a, b}); };
  const auto one = [](double a) { return arg({1}).listed({a}); };
  const auto single = [](double a) { return arg({}).listed({a}); };
  // One step, whose gradients are `times` as large and whose factor is 1 / times.
  const auto known_of = [&](const Arg& factor, double times) {
    return known(AdamW{},
                 {single(0.125).as(DType::f64), single(3).as(DType::f64), go, factor, pair(1, -2),
                  one(4), single(2), pair(0.5 * times, 0.25 * times), one(-times), single(times),
                  pair(0.25, -0.5), one(2), single(-0.5), pair(0.5, 1), one(0.5), single(0.25)},
                 {{0.9889270833681101, -1.9867631529397347},
                  {3.9343220295399792},
                  {2.0151494728732047},
                  {0.275, -0.42500000000000004},
                  {1.7},
                  {-0.35},
                  {0.49975, 0.9990625},
                  {0.5005},
                  {0.25075}});
  };
  return {
      {AdamW{}, of({{5, 7}}, 1, no_factor)},
      {AdamW{}, of({{5, 7}}, 3, factor_of(0.3))},
      {AdamW{0.8, 0.95, 1e-6, 0}, of({{300}, {5, 6}, {}}, 10, factor_of(0.3))},
      {AdamW{0.8, 0.95, 1e-6, 0}, of({{10, 3}, {5}}, 10, no_factor)},
      {AdamW{}, mixed_of(DType::bf16, DType::bf16, DType::f32, factor_of(0.7))},
      {AdamW{}, mixed_of(DType::bf16, DType::f32, DType::bf16, factor_of(0.7))},
      {AdamW{}, mixed_of(DType::f32, DType::f32, DType::bf16, no_factor)},
      {AdamW{.seed = 3, .streams = {{5, 6}}},
       mixed_of(DType::bf16, DType::bf16, DType::bf16, factor_of(0.7))},
      known_of(no_factor, 1),
      known_of(factor_of(0.5), 2),
      known(AdamW{},
            {single(0.125).as(DType::f64), single(3).as(DType::f64), stay, no_factor, pair(1, -2),
             pair(0.5, 0.25), pair(0.25, -0.5), pair(0.5, 1)},
            {{1, -2}, {0.25, -0.5}, {0.5, 1}}),
      timed(AdamW{}, of({{1024, 1024}}, 2, no_factor)),
      timed(AdamW{.seed = 3, .streams = {{5}}}, of({{1024, 1024}}, 2, no_factor)),
      bad(AdamW{}, undefined, "UsageError"),
      bad(AdamW{}, mixed, "DTypeError"),
      bad(AdamW{}, integers, "DTypeError"),
      bad(AdamW{}, narrow_factor, "DTypeError"),
      bad(AdamW{}, wide_factor, "ShapeError"),
      bad(AdamW{}, mixed_of(DType::f64, DType::f32, DType::f64, no_factor), "DTypeError"),
      bad(AdamW{}, mixed_of(DType::f64, DType::f64, DType::f32, no_factor), "DTypeError"),
      bad(AdamW{.streams = {{1}}}, mixed_of(DType::bf16, DType::bf16, DType::f32, no_factor),
          "UsageError"),
      bad(AdamW{}, mismatched, "ShapeError"),
      bad(AdamW{1, 0.9, 1e-8, 0}, of({{3}}, 1, no_factor), "ValueError"),
      bad(AdamW{}, {arg({}).value(1).as(DType::f64)}, "UsageError"),
  };
}

}  // namespace tessera::op

namespace tessera {

void adamw_(const std::vector<Tensor>& parameters, const std::vector<Tensor>& grads,
            const std::vector<Tensor>& first, const std::vector<Tensor>& second, int64_t step,
            const AdamWOptions& options) {
  if (step < 1) fail<ValueError>("adamw_", "steps count from 1: given ", step);
  const Device device = parameters.empty() ? kCpu : parameters[0].device();
  const auto there = [&](double value) { return to_device(tensor(value, DType::f64), device); };
  adamw_(parameters, grads, first, second, there(options.lr), there(static_cast<double>(step)),
         options);
}

void adamw_(const std::vector<Tensor>& parameters, const std::vector<Tensor>& grads,
            const std::vector<Tensor>& first, const std::vector<Tensor>& second, const Tensor& lr,
            const Tensor& step, const AdamWOptions& options) {
  const size_t n = parameters.size();
  if (grads.size() != n || first.size() != n || second.size() != n) {
    fail<UsageError>("adamw_", "lists differ in length: given ", counted(n, "parameter"), ", ",
                     counted(grads.size(), "gradient"), ", ", first.size(), " first and ",
                     second.size(), " second moments");
  }
  if (n == 0) return;
  const NoGrad guard;  // a step is no part of any graph
  const Device device = parameters[0].device();
  SmallVector<Tensor, 64> in;
  in.reserve(op::AdamW::first_list + 4 * n);
  in.push_back(lr);
  in.push_back(step);
  in.push_back(options.skip.defined() ? options.skip : to_device(tensor(0, DType::bool_), device));
  in.push_back(options.grad_factor);
  for (const auto* list : {&parameters, &grads, &first, &second}) {
    for (const Tensor& t : *list) in.push_back(t);
  }
  call(op::AdamW{options.beta1,
                 options.beta2,
                 options.eps,
                 options.weight_decay,
                 options.streams.empty() ? 0 : options.seed,
                 {options.streams}},
       Tensors(in));
}

}  // namespace tessera
