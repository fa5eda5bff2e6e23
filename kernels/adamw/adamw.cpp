// SPDX-License-Identifier: Apache-2.0
// adamw_ on CPU: decay, both moments and the step in one pass over the four lists.
#include "tessera/kernels/adamw/adamw.h"

#include "tessera/kernels/list_chunks_impl.h"
#include "tessera/kernels/loop_nest_impl.h"

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

template <class T>
void step_strided(const StepConstants<T>& c, const Tensor& p, const Tensor& g, const Tensor& m,
                  const Tensor& v) {
  const LoopNest<4> nest(p.shape(), {&p, &g, &m, &v});
  const int last = nest.shape.rank() - 1;
  const int64_t n = nest.shape[last], rows = p.numel() / n;
  for (int64_t row = 0; row < rows; ++row) {
    auto at = nest.row_offsets(row);
    T* pr = p.data<T>() + at[0];
    const T* gr = g.data<T>() + at[1];
    T *mr = m.data<T>() + at[2], *vr = v.data<T>() + at[3];
    for (int64_t i = 0; i < n; ++i) {
      c.update(pr[i * nest.strides[0][last]], gr[i * nest.strides[1][last]],
               mr[i * nest.strides[2][last]], vr[i * nest.strides[3][last]]);
    }
  }
}

}  // namespace

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
      if (other.dtype != p.dtype)
        fail<DTypeError>(name, kRoles[role], " ", i, " must have the parameter's dtype: given ",
                         other, ", expected ", p);
      if (!(other.shape == p.shape))
        fail<ShapeError>(name, kRoles[role], " ", i, " must have the parameter's shape: given ",
                         other, ", expected ", p);
    }
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

void AdamW::cpu(Tensors in, Outputs) const {
  const double lr = *in[0].data<double>(), step = *in[1].data<double>();
  if (!(step >= 1)) fail<ValueError>(name, "steps count from 1: given ", step);
  const size_t n = (in.size() - 2) / 4;
  const auto role = [&](size_t r, size_t i) -> const Tensor& { return in[2 + r * n + i]; };
  const auto strided = [&](size_t i) {
    return !(role(0, i).is_contiguous() && role(1, i).is_contiguous() &&
             role(2, i).is_contiguous() && role(3, i).is_contiguous());
  };
  const StepConstants<float> single(*this, lr, step);
  const StepConstants<double> exact(*this, lr, step);
  ListChunks(in.subspan(2, n), strided)
      .for_each([&](int64_t, size_t i, int64_t begin, int64_t end) {
        const Tensor &p = role(0, i), &g = role(1, i), &m = role(2, i), &v = role(3, i);
        const auto run = [&]<class T>(const StepConstants<T>& c) {
          if (strided(i)) return step_strided(c, p, g, m, v);
          const int64_t count = std::min(end, p.numel()) - begin;
          step_run(c, count, p.data<T>() + begin, g.data<T>() + begin, m.data<T>() + begin,
                   v.data<T>() + begin);
        };
        p.dtype() == DType::f32 ? run(single) : run(exact);
      });
}

std::vector<Sample<AdamW>> AdamW::samples() {
  const auto of = [](std::initializer_list<Shape> shapes, double step) {
    std::vector<Arg> in{arg({}).value(0.01).as(DType::f64), arg({}).value(step).as(DType::f64)};
    for (int role = 0; role < 4; ++role) {
      for (const Shape& s : shapes) in.push_back(role == 3 ? arg(s).uniform(0, 1) : arg(s));
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
      timed(AdamW{}, of({{1024, 1024}}, 2)),
      bad(AdamW{}, undefined, "UsageError"),
      bad(AdamW{}, mixed, "DTypeError"),
      bad(AdamW{}, integers, "DTypeError"),
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
  call(op::AdamW{options.beta1, options.beta2, options.eps, options.weight_decay}, Tensors(in));
}

}  // namespace tessera
