// SPDX-License-Identifier: Apache-2.0
// adamw_ on CPU: decay, both moments and the step in one pass over the four lists.
#include "tessera/kernels/adamw/adamw.h"

#include "tessera/kernels/list_chunks_impl.h"
#include "tessera/kernels/step_blocks_impl.h"

#include <array>
#include <cmath>

namespace tessera::op {
namespace {

constexpr std::array<std::string_view, 4> kRoles{"parameter", "gradient", "first moment",
                                                 "second moment"};

// The step's constants, rounded once to the parameters' type.
template <class T> struct StepConstants {
  T decay, beta1, rest1, beta2, rest2, root_correction2, eps, step_size;

  StepConstants(const AdamW& op, double lr, double step)
      : decay(static_cast<T>(1 - lr * op.weight_decay)),
        beta1(static_cast<T>(op.beta1)),
        rest1(static_cast<T>(1 - op.beta1)),
        beta2(static_cast<T>(op.beta2)),
        rest2(static_cast<T>(1 - op.beta2)),
        root_correction2(static_cast<T>(std::sqrt(1 - std::pow(op.beta2, step)))),
        eps(static_cast<T>(op.eps)),
        step_size(static_cast<T>(lr / (1 - std::pow(op.beta1, step)))) {}

  TESSERA_INLINE void update(T& p, T g, T& first, T& second) const {
    const T m = beta1 * first + rest1 * g;
    const T v = beta2 * second + rest2 * (g * g);
    first = m;
    second = v;
    p = p * decay - step_size * (m / (std::sqrt(v) / root_correction2 + eps));
  }
};

template <class T>
void step_run(const StepConstants<T>& constants, int64_t n, T* parameter, const T* gradient,
              T* first, T* second) {
  simd([&]() TESSERA_LAMBDA {
    const StepConstants<T> c = constants;
    T* __restrict p = parameter;
    const T* __restrict g = gradient;
    T* __restrict m = first;
    T* __restrict v = second;
    for (int64_t i = 0; i < n; ++i) c.update(p[i], g[i], m[i], v[i]);
  });
}

// Elements [begin, end) of an entry of several dtypes.
void step_mixed(const StepConstants<float>& constants, const StepEntries<4>::Entry& entry,
                int64_t begin, int64_t end, const RngKey* key, const PieceIndex& piece) {
  alignas(64) float values[4][kStepBlock];
  alignas(64) uint32_t words[kStepBlock];
  for (int64_t at = begin; at < end; at += kStepBlock) {
    const int64_t n = std::min(kStepBlock, end - at);
    for (size_t role = 0; role < 4; ++role) load_block(entry[role], at, n, values[role]);
    step_run(constants, n, values[0], values[1], values[2], values[3]);
    if (!key) {
      for (size_t role : {0u, 2u, 3u}) store_block(values[role], n, entry[role], at);
      continue;
    }
    step_words(*key, piece, at, n, words);
    store_block(values[0], n, entry[0], at, words,
                [](uint32_t w) TESSERA_LAMBDA { return rng::parameter_bits(w); });
    store_block(values[2], n, entry[2], at, words,
                [](uint32_t w) TESSERA_LAMBDA { return rng::first_bits(w); });
    store_block(values[3], n, entry[3], at, words,
                [](uint32_t w) TESSERA_LAMBDA { return rng::second_bits(w); });
  }
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
  if (in.size() < 2 || (in.size() - 2) % 4 != 0) {
    fail<UsageError>(name, "expected lr, step and four lists of equal length: given ", in.size(),
                     " inputs");
  }
  if (!(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1 && eps >= 0)) {
    fail<ValueError>(name, "expected 0 <= beta < 1 and eps >= 0: given beta1 ", beta1, ", beta2 ",
                     beta2, ", eps ", eps);
  }
  for (size_t i = 0; i < 2; ++i) {
    if (in[i].dtype != DType::f64)
      fail<DTypeError>(name, i ? "step" : "lr", " must be f64: given ", in[i]);
    if (in[i].shape.rank() != 0)
      fail<ShapeError>(name, i ? "step" : "lr", " must be 0-dim: given ", in[i]);
  }
  const size_t n = (in.size() - 2) / 4;
  if (!streams.of.empty() && streams.of.size() != n)
    fail<UsageError>(name, "expected one stream per parameter, or none: given ", streams.of.size(),
                     " for ", n, " parameters");
  for (size_t i = 0; i < n; ++i) {
    for (size_t role = 0; role < 4; ++role) {
      if (!in.has(2 + role * n + i))
        fail<UsageError>(name, kRoles[role], " ", i,
                         " is undefined: step only parameters that have a gradient");
    }
    const TensorMeta& p = in[2 + i];
    if (!dtypes.has(p.dtype))
      fail<DTypeError>(name, "parameter ", i, " must be of ", dtypes, ": given ", p);
    for (size_t role = 1; role < 4; ++role) {
      const TensorMeta& other = in[2 + role * n + i];
      if (!(other.shape == p.shape))
        fail<ShapeError>(name, kRoles[role], " ", i, " must have the parameter's shape: given ",
                         other, ", expected ", p);
    }
    check_dtypes(name, i, p, in[2 + n + i], in[2 + 2 * n + i], in[2 + 3 * n + i]);
  }
  return {};
}

ShardingRule AdamW::sharding(Metas in) const {
  const size_t n = (in.size() - 2) / 4;
  ShardingRule r;
  const auto entries = own_factors(r, in, 2, n);
  r.operand({}).operand({});
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
    for (const Piece::Range& r : piece.operands[2 + i]) {
      place.start.push_back(r.begin);
      place.whole.push_back(r.global);
    }
  }
  return op;
}

void AdamW::cpu(Tensors in, Outputs) const {
  const double lr = *in[0].data<double>(), step = *in[1].data<double>();
  if (!(step >= 1)) fail<ValueError>(name, "steps count from 1: given ", step);
  const size_t n = (in.size() - 2) / 4;
  const StepEntries<4> entries(in.subspan(2));
  std::vector<PieceIndex> pieces;
  std::vector<RngKey> keys;
  for (size_t i = 0; i < n; ++i) {
    if (streams.of.empty()) continue;
    const Tensor& p = entries[i][0];
    keys.push_back(rng::at_step({seed, streams.of[i]}, static_cast<uint64_t>(step)));
    pieces.push_back(places.empty() ? PieceIndex(p.numel())
                                    : PieceIndex(p.shape(), places[i].start, places[i].whole));
  }
  const StepConstants<float> single(*this, lr, step);
  const StepConstants<double> exact(*this, lr, step);
  ListChunks(in.subspan(2, n), [](size_t) {
    return false;
  }).for_each([&](int64_t, size_t i, int64_t begin, int64_t end) {
    const auto& e = entries[i];
    end = std::min(end, e[0].numel());
    const auto run = [&]<class T>(const StepConstants<T>& c) {
      step_run(c, end - begin, e[0].data<T>() + begin, e[1].data<T>() + begin,
               e[2].data<T>() + begin, e[3].data<T>() + begin);
    };
    if (e[0].dtype() == DType::f64) return run(exact);
    if (entries.all_of(i, DType::f32)) return run(single);
    const bool keyed = !keys.empty();
    step_mixed(single, e, begin, end, keyed ? &keys[i] : nullptr, keyed ? pieces[i] : PieceIndex());
  });
  entries.done({0, 2, 3});
}

std::vector<Sample<AdamW>> AdamW::samples() {
  const auto of = [](std::initializer_list<Shape> shapes, double step) {
    std::vector<Arg> in{arg({}).value(0.01).as(DType::f64), arg({}).value(step).as(DType::f64)};
    for (int role = 0; role < 4; ++role) {
      for (const Shape& s : shapes) in.push_back(role == 3 ? arg(s).uniform(0, 1) : arg(s));
    }
    return in;
  };
  // Parameter, gradient, first and second moment of two shapes, each role of its own dtype.
  const auto mixed_of = [](DType p, DType g, DType m) {
    std::vector<Arg> in{arg({}).value(0.01).as(DType::f64), arg({}).value(3).as(DType::f64)};
    const DType types[] = {p, g, m, m};
    for (int role = 0; role < 4; ++role) {
      for (const Shape& s : {Shape{37}, Shape{5, 6}})
        in.push_back((role == 3 ? arg(s).uniform(0, 1) : arg(s)).as(types[role]));
    }
    return in;
  };
  auto undefined = of({{3}, {4}}, 1);
  undefined[5] = no_arg();
  auto mixed = of({{3}}, 1);
  mixed[3] = arg({3}).as(DType::bf16);
  auto mismatched = of({{3}}, 1);
  mismatched[4] = arg({4});
  auto integers = of({{3}}, 1);
  for (size_t i = 2; i < 6; ++i) integers[i] = arg({3}).as(DType::i64);
  return {
      {AdamW{}, of({{5, 7}}, 1)},
      {AdamW{0.8, 0.95, 1e-6, 0}, of({{37}, {5, 6}, {}}, 10)},
      {AdamW{0.8, 0.95, 1e-6, 0}, of({{10, 3}, {5}}, 10)},
      {AdamW{}, mixed_of(DType::bf16, DType::bf16, DType::f32)},
      {AdamW{}, mixed_of(DType::bf16, DType::f32, DType::bf16)},
      {AdamW{}, mixed_of(DType::f32, DType::f32, DType::bf16)},
      {AdamW{.seed = 3, .streams = {{5, 6}}}, mixed_of(DType::bf16, DType::bf16, DType::bf16)},
      timed(AdamW{}, of({{1024, 1024}}, 2)),
      timed(AdamW{.seed = 3, .streams = {{5}}}, of({{1024, 1024}}, 2)),
      bad(AdamW{}, undefined, "UsageError"),
      bad(AdamW{}, mixed, "DTypeError"),
      bad(AdamW{}, integers, "DTypeError"),
      bad(AdamW{}, mixed_of(DType::f64, DType::f32, DType::f64), "DTypeError"),
      bad(AdamW{}, mixed_of(DType::f64, DType::f64, DType::f32), "DTypeError"),
      bad(AdamW{.streams = {{1}}}, mixed_of(DType::bf16, DType::bf16, DType::f32), "UsageError"),
      bad(AdamW{}, mismatched, "ShapeError"),
      bad(AdamW{1, 0.9, 1e-8, 0}, of({{3}}, 1), "ValueError"),
      bad(AdamW{}, {arg({}).value(1).as(DType::f64)}, "UsageError"),
  };
}

}  // namespace tessera::op

namespace tessera {

void adamw_(const std::vector<Tensor>& parameters, const std::vector<Tensor>& grads,
            const std::vector<Tensor>& first, const std::vector<Tensor>& second, int64_t step,
            const AdamWOptions& options) {
  const size_t n = parameters.size();
  if (grads.size() != n || first.size() != n || second.size() != n) {
    fail<UsageError>("adamw_", "lists differ in length: given ", n, " parameters, ", grads.size(),
                     " gradients, ", first.size(), " first and ", second.size(), " second moments");
  }
  if (step < 1) fail<ValueError>("adamw_", "steps count from 1: given ", step);
  if (n == 0) return;
  const NoGrad guard;  // a step is no part of any graph
  const Device device = parameters[0].device();
  SmallVector<Tensor, 64> in;
  in.reserve(2 + 4 * n);
  in.push_back(to_device(tensor(options.lr, DType::f64), device));
  in.push_back(to_device(tensor(static_cast<double>(step), DType::f64), device));
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
