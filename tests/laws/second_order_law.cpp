// SPDX-License-Identifier: Apache-2.0
// Second-order law. With create_graph, the gradient of <grad(x), v> must match finite differences
// of <grad(x), v>. Where the vjp calls an op without a gradient, asking must raise an AutogradError
// that repeats that op's sentence.
#include "tessera/autograd/autograd.h"
#include "tessera/tests/laws/laws.h"

#include <cmath>

namespace tessera::laws {
namespace {

// The gradients of <dy, f(in)> by `wrt`, through the real call and tape.
std::vector<Tensor> first_gradients(const OpRow& row, const void* op, const TensorVector& in,
                                    const std::vector<Tensor>& wrt, const TensorVector& dy,
                                    bool create_graph) {
  TensorList out;
  detail::call(row, op, in, out);
  std::vector<Tensor> outputs;
  GradOptions options;
  for (size_t o = 0; o < out.size(); ++o) {
    if (!dy[o].defined()) continue;
    outputs.push_back(out[o]);
    options.grad_outputs.push_back(dy[o]);
  }
  options.create_graph = create_graph;
  options.allow_unused = true;
  return grad(outputs, wrt, options);
}

Tensor random_like(const Tensor& x, Random& random) {
  std::vector<double> v(static_cast<size_t>(x.numel()));
  for (double& e : v) e = random.normal();
  return place(v, x.shape(), x.dtype());
}

bool varies(const Tensor& x) {
  return x.defined() && (x.dtype() == DType::f64 || x.dtype() == DType::f32);
}

TensorVector leaves_of(const TensorVector& in, const TensorVector& directions, double by) {
  TensorVector leaves;
  for (size_t i = 0; i < in.size(); ++i) {
    if (!directions[i].defined()) {
      leaves.push_back(in[i]);
      continue;
    }
    auto v = in[i].values();
    const auto d = directions[i].values();
    for (size_t k = 0; k < v.size(); ++k) v[k] += by * d[k];
    leaves.push_back(place(v, in[i].shape(), in[i].dtype()).set_requires_grad());
  }
  return leaves;
}

std::vector<Tensor> variables(const TensorVector& leaves) {
  std::vector<Tensor> all;
  for (const Tensor& t : leaves) {
    if (t.defined() && t.requires_grad()) all.push_back(t);
  }
  return all;
}
std::vector<Tensor> defined(const TensorVector& tensors) {
  std::vector<Tensor> all;
  for (const Tensor& t : tensors) {
    if (t.defined()) all.push_back(t);
  }
  return all;
}

void judge(const Subject& s, const SampleRow& sample, Report& report) {
  Random random(concat(s.row->name, " second order"));
  const void* op = sample.op.get();
  const TensorVector in = inputs_of(sample, exact_dtype(*s.row), random);
  TensorVector direction, cotangent,
      dy;  // where x moves, what weighs its gradient, what weighs the output
  bool f32 = false;
  for (size_t i = 0; i < in.size(); ++i) {
    const bool moves = varies(in[i]) && sample.in[i].differentiable;
    direction.push_back(moves ? random_like(in[i], random) : Tensor());
    cotangent.push_back(moves ? random_like(in[i], random) : Tensor());
    f32 |= moves && in[i].dtype() == DType::f32;
  }
  bool any = false;
  for (const Tensor& y : run(s, op, in)) {
    dy.push_back(varies(y) ? random_like(y, random) : Tensor());
    any |= varies(y) && y.numel() > 0;
    f32 |= varies(y) && y.dtype() == DType::f32;
  }
  const TensorVector leaves = leaves_of(in, direction, 0);
  const auto x = variables(leaves);
  if (!any || x.empty()) return;
  // An output that only backward reads may be refused, as the gradient law allows.
  for (size_t o = 0; dy.size() > 1 && o < dy.size(); ++o) {
    TensorVector alone(dy.size());
    std::swap(alone[o], dy[o]);
    try {
      if (alone[o].defined()) (void)first_gradients(*s.row, op, leaves, x, alone, false);
      std::swap(alone[o], dy[o]);
    } catch (const AutogradError& e) {
      if (!std::string_view(e.what()).starts_with(concat('[', s.row->name, ']'))) throw;
    }
  }

  // <grad(x), cotangent> at x + by * direction.
  const auto weigh = [&](const std::vector<Tensor>& grads) {
    double sum = 0;
    const auto weights = defined(cotangent);
    for (size_t i = 0; i < grads.size(); ++i)
      sum += grads[i].defined() ? dot(grads[i], weights[i]) : 0;
    return sum;
  };
  const auto at = [&](double by) {
    const TensorVector moved = leaves_of(in, direction, by);
    return weigh(first_gradients(*s.row, op, moved, variables(moved), dy, false));
  };

  double analytic = 0, size = 0;
  try {
    const auto g = first_gradients(*s.row, op, leaves, x, dy, true);
    GradOptions options;
    options.allow_unused = true;
    std::vector<Tensor> outputs;
    const auto weights = defined(cotangent);
    for (size_t i = 0; i < g.size(); ++i) {
      if (!g[i].defined() || !g[i].requires_grad()) continue;  // constant in x
      outputs.push_back(g[i]);
      options.grad_outputs.push_back(weights[i]);
    }
    if (!outputs.empty()) {
      const auto second = grad(outputs, x, options);
      const auto along = defined(direction);
      for (size_t i = 0; i < second.size(); ++i) {
        if (!second[i].defined()) continue;
        analytic += dot(second[i], along[i]);
        size += norm(second[i]) * norm(along[i]);
      }
    }
  } catch (const AutogradError& e) {
    for (const OpRow* row : kernel_rows()) {
      if (!row->not_differentiable.empty() &&
          std::string_view(e.what()).find(row->not_differentiable) != std::string_view::npos) {
        return report.check(sample, {}, "first order only, and says so");
      }
    }
    return report.check(sample, concat("AutogradError without an op's sentence: ", e.what()),
                        "gradient of the gradient");
  }
  const double e = f32 ? 2e-2 : 2.5e-4;
  const double numeric = (8 * (at(e) - at(-e)) - (at(2 * e) - at(-2 * e))) / (12 * e);
  std::optional<std::string> problem;
  if (!(std::abs(numeric - analytic) <=
        (f32 ? 1e-3 : 1e-6) * std::max({size, std::abs(numeric), 0.1}))) {
    problem = concat("is ", analytic, " along a random direction, finite differences ", numeric);
  }
  report.check(sample, problem, "gradient of the gradient");
}

}  // namespace

Outcome second_order_law(const Subject& s) {
  Report report(s);
  if (!s.row->vjp) return report.take();
  for (const SampleRow& sample : good_samples(s)) {
    report.attempt(sample, "the second-order check", [&] { judge(s, sample, report); });
  }
  return report.take();
}

}  // namespace tessera::laws
