// SPDX-License-Identifier: Apache-2.0
// sgd_ on CPU: decay, momentum and the step in one pass over the lists.
#include "tessera/kernels/sgd/sgd.h"

#include "tessera/core/message.h"
#include "tessera/core/scopes.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/shared/step_blocks_impl.h"
#include "tessera/kernels/shared/tensor_list_impl.h"

#include <optional>

namespace tessera::op {
namespace {

// The step's constants, rounded once to the type of the arithmetic.
template <class T> struct StepConstants {
  T lr, sign, decay, factor, momentum = 0, rest = 0;
  bool first = false, nesterov = false;

  StepConstants(const Sgd& op, double rate, double grad_factor)
      : lr(static_cast<T>(rate)),
        sign(static_cast<T>(op.maximize ? -1 : 1)),
        decay(static_cast<T>(op.weight_decay)),
        factor(static_cast<T>(grad_factor)) {}
  StepConstants(const SgdMomentum& op, double rate, double grad_factor, double step)
      : lr(static_cast<T>(rate)),
        sign(static_cast<T>(op.maximize ? -1 : 1)),
        decay(static_cast<T>(op.weight_decay)),
        factor(static_cast<T>(grad_factor)),
        momentum(static_cast<T>(op.momentum)),
        rest(static_cast<T>(1 - op.dampening)),
        first(step == 1),
        nesterov(op.nesterov) {}
};

// `buffer`: none without momentum.
template <class T, class G>
void step_run(const StepConstants<T>& constants, int64_t n, T* parameter, const G* gradient,
              T* buffer) {
  simd([&]() TESSERA_LAMBDA {
    const StepConstants<T> c = constants;
    T* __restrict p = parameter;
    const G* __restrict g = gradient;
    T* __restrict b = buffer;
    if (!b) {
      for (int64_t i = 0; i < n; ++i)
        p[i] -= c.lr * (c.sign * static_cast<T>(scaled(g[i], c.factor)) + c.decay * p[i]);
      return;
    }
    // The first step takes the gradient itself; what a buffer holds before is not read.
    for (int64_t i = 0; i < n; ++i) {
      const T d = c.sign * static_cast<T>(scaled(g[i], c.factor)) + c.decay * p[i];
      const T moved = c.first ? d : c.momentum * b[i] + c.rest * d;
      b[i] = moved;
      p[i] -= c.lr * (c.nesterov ? d + c.momentum * moved : moved);
    }
  });
}

// The factor of the gradients, 1 if it is left out.
double factor_in(const Tensor& grad_factor) {
  return grad_factor.defined() ? *grad_factor.data<double>() : 1;
}

constexpr std::array<std::string_view, 3> kRoles{"parameter", "gradient", "buffer"};
constexpr DTypeSet kNarrow = dtypes_of(DType::f32, DType::bf16);

void check_scalar(std::string_view name, std::string_view what, const TensorMeta& x,
                  DType dtype = DType::f64) {
  if (x.dtype != dtype) fail<DTypeError>(name, what, " must be ", dtype, ": given ", x);
  if (x.shape.rank() != 0) fail<ShapeError>(name, what, " must be 0-dim: given ", x);
}

// The last of the scalars is grad_factor, which may be left out.
void check_lists(std::string_view name, DTypeSet dtypes, Metas in, size_t scalars, size_t roles) {
  if (in.size() < scalars || (in.size() - scalars) % roles != 0) {
    fail<UsageError>(name, "expected lr, skip, ", scalars == 4 ? "step, " : "", "grad_factor and ",
                     counted(roles, "list"), " of equal length: given ",
                     counted(in.size(), "input"));
  }
  check_scalar(name, "lr", in[0]);
  check_scalar(name, "skip", in[1], DType::bool_);
  if (scalars == 4) check_scalar(name, "step", in[2]);
  if (in.has(scalars - 1)) check_scalar(name, "grad_factor", in[scalars - 1]);
  const size_t n = (in.size() - scalars) / roles;
  for (size_t i = 0; i < n; ++i) {
    for (size_t role = 0; role < roles; ++role) {
      if (!in.has(scalars + role * n + i))
        fail<UsageError>(name, kRoles[role], " ", i,
                         " is undefined: step only parameters that have a gradient");
    }
    const TensorMeta& p = in[scalars + i];
    if (!dtypes.has(p.dtype))
      fail<DTypeError>(name, "parameter ", i, " must be of ", dtypes, ": given ", p);
    for (size_t role = 1; role < roles; ++role) {
      const TensorMeta& other = in[scalars + role * n + i];
      const bool fits = other.dtype == p.dtype ||
                        (p.dtype != DType::f64 &&
                         (other.dtype == DType::f32 || (role == 2 && other.dtype == DType::bf16)));
      if (!fits)
        fail<DTypeError>(name, kRoles[role], " ", i, " must have the parameter's dtype",
                         role == 2 ? ", f32 or bf16" : " or be f32", " (f64 beside f64): given ",
                         other, ", the parameter is ", p);
      if (!(other.shape == p.shape))
        fail<ShapeError>(name, kRoles[role], " ", i, " must have the parameter's shape: given ",
                         other, ", expected ", p);
    }
  }
}

void check_decay(std::string_view name, double weight_decay) {
  if (!(weight_decay >= 0))
    fail<ValueError>(name, "weight_decay must not be negative: given ", weight_decay);
}

ShardingRule lists_rule(Metas in, size_t scalars, size_t roles) {
  const size_t n = (in.size() - scalars) / roles;
  ShardingRule r;
  const auto entries = own_factors(r, in, scalars, n);
  for (size_t i = 0; i < scalars; ++i) r.operand({});
  for (size_t i = 0; i < roles * n; ++i) r.operand(entries[i % n]);
  r.outputs_from_here();
  for (size_t i = 0; i < (roles - 1) * n; ++i) r.operand(entries[i % n]);
  return r;
}

template <size_t kRoleCount>
void step_lists(Tensors lists, const StepConstants<float>& single,
                const StepConstants<double>& exact) {
  const StepEntries<kRoleCount> entries(lists);
  constexpr bool kBuffers = kRoleCount == 3;
  ListChunks(lists.first(entries.size()), [](size_t) {
    return false;
  }).for_each([&](int64_t, size_t i, int64_t begin, int64_t end) {
    const auto& e = entries[i];
    end = std::min(end, e[0].numel());
    const auto run = [&]<class T>(const StepConstants<T>& c) {
      T* buffer = nullptr;
      if constexpr (kBuffers) buffer = e[2].template data<T>() + begin;
      step_run(c, end - begin, e[0].template data<T>() + begin,
               static_cast<const T*>(e[1].template data<T>()) + begin, buffer);
    };
    if (e[0].dtype() == DType::f64) return run(exact);
    if (entries.all_of(i, DType::f32)) return run(single);
    alignas(64) float p[kStepBlock], b[kStepBlock];
    for (int64_t at = begin; at < end; at += kStepBlock) {
      const int64_t n = std::min(kStepBlock, end - at);
      load_block(e[0], at, n, p);
      if constexpr (kBuffers) load_block(e[2], at, n, b);
      dispatch<kNarrow>(e[1].dtype(), [&]<class G>() {
        step_run(single, n, p, static_cast<const G*>(e[1].template data<G>()) + at,
                 kBuffers ? b : nullptr);
      });
      store_block(p, n, e[0], at);
      if constexpr (kBuffers) store_block(b, n, e[2], at);
    }
  });
  if constexpr (kBuffers) entries.done({0, 2});
  else entries.done({0});
}

// Samples' inputs: scalars, then each role over the shapes.
std::vector<Arg> lists_of(std::vector<Arg> scalars, std::initializer_list<Shape> shapes,
                          std::vector<std::optional<DType>> roles) {
  for (const auto& t : roles) {
    for (const Shape& s : shapes) scalars.push_back(t ? arg(s).as(*t) : arg(s));
  }
  return scalars;
}
Arg scalar(double v) { return arg({}).value(v).as(DType::f64); }
Arg factor_of(double v) { return arg({}).listed({v}).as(DType::f64); }
Arg skip(bool on) { return arg({}).listed({on ? 1.0 : 0.0}).as(DType::bool_); }

}  // namespace

MetaList Sgd::meta(Metas in) const {
  check_lists(name, dtypes, in, first_list, 2);
  check_decay(name, weight_decay);
  return {};
}

ShardingRule Sgd::sharding(Metas in) const { return lists_rule(in, first_list, 2); }

void Sgd::cpu(Tensors in, Outputs) const {
  if (*in[1].data<bool>()) return;
  const double lr = *in[0].data<double>(), factor = factor_in(in[2]);
  step_lists<2>(in.subspan(first_list), {*this, lr, factor}, {*this, lr, factor});
}

std::vector<Sample<Sgd>> Sgd::samples() {
  using S = Sgd;
  const std::optional<DType> any;
  const std::vector<Arg> lr{scalar(0.1), skip(false), no_arg()},
      clipped{scalar(0.1), skip(false), factor_of(0.3)};
  auto undefined = lists_of(lr, {{3}, {4}}, {any, any});
  undefined[6] = no_arg();
  auto mismatched = lists_of(lr, {{3}}, {any, any});
  mismatched[4] = arg({4});
  auto narrow_factor = lists_of(lr, {{3}}, {any, any}), wide_factor = narrow_factor;
  narrow_factor[2] = arg({}).value(0.5).as(DType::f32);
  wide_factor[2] = arg({1}).value(0.5).as(DType::f64);
  const Arg rate = arg({}).listed({0.25}).as(DType::f64), go = skip(false), none = no_arg(),
            half = factor_of(0.5), p = arg({2}).listed({1, -2}), g = arg({2}).listed({0.5, 0.25}),
            twice_g = arg({2}).listed({1, 0.5}), four = arg({1}).listed({4}),
            minus_one = arg({1}).listed({-1}), two = arg({}).listed({2}), one = arg({}).listed({1});
  return {
      {S{}, lists_of(lr, {{5, 7}}, {any, any})},
      {S{0.1}, lists_of(clipped, {{5, 7}}, {any, any})},
      {S{0.1, true}, lists_of(clipped, {{300}, {5, 6}, {}}, {any, any})},
      {S{0.1, true}, lists_of(lr, {{10, 5}, {5}}, {any, any})},
      {S{0.1}, lists_of({scalar(2), skip(false), factor_of(0.7)}, {{1200}, {5, 6}},
                        {DType::bf16, DType::f32})},
      known(S{0.5}, {rate, go, none, p, four, two, g, minus_one, one},
            {{0.75, -1.8125}, {3.75}, {1.5}}),
      known(S{0.5, true}, {rate, go, none, p, g}, {{1, -1.6875}}),
      known(S{0.5, true}, {rate, go, half, p, twice_g}, {{1, -1.6875}}),
      known(S{0.5}, {rate, skip(true), none, p, g}, {{1, -2}}),
      timed(S{0.1}, lists_of(lr, {{1024, 1024}}, {any, any})),
      bad(S{}, undefined, "UsageError"),
      bad(S{}, mismatched, "ShapeError"),
      bad(S{}, narrow_factor, "DTypeError"),
      bad(S{}, wide_factor, "ShapeError"),
      bad(S{}, lists_of(lr, {{3}}, {DType::f32, DType::bf16}), "DTypeError"),
      bad(S{}, lists_of(lr, {{3}}, {DType::i64, DType::i64}), "DTypeError"),
      bad(S{-1}, lists_of(lr, {{3}}, {any, any}), "ValueError"),
      bad(S{}, lists_of(lr, {{3}}, {any}), "UsageError"),
  };
}

MetaList SgdMomentum::meta(Metas in) const {
  check_lists(name, dtypes, in, first_list, 3);
  check_decay(name, weight_decay);
  if (!(momentum >= 0)) fail<ValueError>(name, "momentum must not be negative: given ", momentum);
  if (nesterov && !(momentum > 0 && dampening == 0))
    fail<ValueError>(name, "nesterov needs momentum > 0 and no dampening: given ", momentum,
                     " and ", dampening);
  return {};
}

ShardingRule SgdMomentum::sharding(Metas in) const { return lists_rule(in, first_list, 3); }

void SgdMomentum::cpu(Tensors in, Outputs) const {
  const double lr = *in[0].data<double>(), step = *in[2].data<double>();
  if (!(step >= 1)) fail<ValueError>(name, "steps count from 1: given ", step);
  if (*in[1].data<bool>()) return;
  const double factor = factor_in(in[3]);
  step_lists<3>(in.subspan(first_list), {*this, lr, factor, step}, {*this, lr, factor, step});
}

std::vector<Sample<SgdMomentum>> SgdMomentum::samples() {
  using S = SgdMomentum;
  const std::optional<DType> any;
  const std::vector<Arg> first{scalar(0.1), skip(false), scalar(1), no_arg()},
      later{scalar(0.1), skip(false), scalar(7), no_arg()},
      clipped{scalar(0.1), skip(false), scalar(7), factor_of(0.3)};
  auto undefined = lists_of(later, {{3}}, {any, any, any});
  undefined[5] = no_arg();
  auto mismatched = lists_of(later, {{3}}, {any, any, any});
  mismatched[6] = arg({4});
  auto narrow_factor = lists_of(later, {{3}}, {any, any, any}), wide_factor = narrow_factor;
  narrow_factor[3] = arg({}).value(0.5).as(DType::f32);
  wide_factor[3] = arg({1}).value(0.5).as(DType::f64);
  auto wide_rate = lists_of(later, {{3}}, {any, any, any});
  wide_rate[0] = arg({1}).value(1).as(DType::f64);
  const Arg rate = arg({}).listed({0.25}).as(DType::f64), go = skip(false),
            step = arg({}).listed({2}).as(DType::f64), none = no_arg(),
            p = arg({2}).listed({1, -2}), g = arg({2}).listed({0.5, 0.25}),
            twice_g = arg({2}).listed({1, 0.5}), b = arg({2}).listed({0.25, -0.5}),
            four = arg({1}).listed({4}), minus_one = arg({1}).listed({-1}),
            two = arg({}).listed({2}), one = arg({}).listed({1}), half = arg({1}).listed({0.5}),
            minus_four = arg({}).listed({-4});
  return {
      {S{}, lists_of(first, {{5, 7}}, {any, any, any})},
      {S{0.8, 0.5, 0.1, false, true}, lists_of(later, {{300}, {5, 6}, {}}, {any, any, any})},
      {S{.momentum = 0.8, .nesterov = true}, lists_of(clipped, {{5, 7}}, {any, any, any})},
      {S{}, lists_of(later, {{10, 5}, {5}}, {DType::bf16, DType::f32, DType::f32})},
      {S{}, lists_of(clipped, {{300}, {5}}, {DType::bf16, DType::f32, DType::f32})},
      {S{}, lists_of(clipped, {{300}, {5}}, {DType::bf16, DType::bf16, DType::f32})},
      {S{}, lists_of(later, {{300}, {5, 6}}, {DType::f32, DType::f32, DType::bf16})},
      known(S{0.5, 0.25, 0.5},
            {rate, go, step, none, p, four, two, g, minus_one, one, b, half, minus_four},
            {{0.78125, -1.796875}, {3.75}, {2.125}, {0.875, -0.8125}, {1}, {-0.5}}),
      known(S{.momentum = 0.5, .nesterov = true}, {rate, go, step, none, p, g, b},
            {{0.796875, -2.0625}, {0.625, 0}}),
      known(S{.momentum = 0.5, .nesterov = true}, {rate, go, step, factor_of(0.5), p, twice_g, b},
            {{0.796875, -2.0625}, {0.625, 0}}),
      known(S{.momentum = 0.5}, {rate, skip(true), step, none, p, g, b}, {{1, -2}, {0.25, -0.5}}),
      timed(S{.weight_decay = 0.1}, lists_of(later, {{1024, 1024}}, {any, any, any})),
      bad(S{}, undefined, "UsageError"),
      bad(S{}, mismatched, "ShapeError"),
      bad(S{}, wide_rate, "ShapeError"),
      bad(S{}, narrow_factor, "DTypeError"),
      bad(S{}, wide_factor, "ShapeError"),
      bad(S{}, lists_of(later, {{3}}, {DType::f64, DType::f64, DType::f32}), "DTypeError"),
      bad(S{.momentum = -1}, lists_of(later, {{3}}, {any, any, any}), "ValueError"),
      bad(S{.dampening = 0.5, .nesterov = true}, lists_of(later, {{3}}, {any, any, any}),
          "ValueError"),
      bad(S{}, {scalar(1)}, "UsageError"),
  };
}

}  // namespace tessera::op

namespace tessera {

void sgd_(const std::vector<Tensor>& parameters, const std::vector<Tensor>& grads,
          const std::vector<Tensor>& buffers, int64_t step, const SgdOptions& options) {
  const size_t n = parameters.size();
  const bool momentum = options.momentum != 0;
  if (grads.size() != n || buffers.size() != (momentum ? n : 0)) {
    fail<UsageError>("sgd_", "lists differ in length: given ", counted(n, "parameter"), ", ",
                     counted(grads.size(), "gradient"), " and ", counted(buffers.size(), "buffer"),
                     momentum ? "" : ", of which none is needed without momentum");
  }
  if (step < 1) fail<ValueError>("sgd_", "steps count from 1: given ", step);
  if (!momentum && options.nesterov)
    fail<ValueError>("sgd_", "nesterov needs momentum > 0: given ", options.momentum);
  if (n == 0) return;
  const NoGrad guard;  // a step is no part of any graph
  const Device device = parameters[0].device();
  SmallVector<Tensor, 64> in;
  in.reserve(4 + 3 * n);
  in.push_back(to_device(tensor(options.lr, DType::f64), device));
  in.push_back(options.skip.defined() ? options.skip : to_device(tensor(0, DType::bool_), device));
  if (momentum) in.push_back(to_device(tensor(static_cast<double>(step), DType::f64), device));
  in.push_back(options.grad_factor);
  for (const auto* list : {&parameters, &grads, &buffers}) {
    for (const Tensor& t : *list) in.push_back(t);
  }
  if (momentum)
    call(op::SgdMomentum{options.momentum, options.dampening, options.weight_decay,
                         options.nesterov, options.maximize},
         Tensors(in));
  else call(op::Sgd{options.weight_decay, options.maximize}, Tensors(in));
}

}  // namespace tessera
