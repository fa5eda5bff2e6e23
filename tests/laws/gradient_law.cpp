// SPDX-License-Identifier: Apache-2.0
// Gradient law. In f64, for each input alone and all together: <vjp(dy), v> against a four-point
// finite difference of <dy, f(x + e v)>, for random v and dy. The vjp sees only what `saves`
// declares, asking for one input or for all gives the same gradients, and an undefined dy counts as
// zero. An input that the sample calls a constant, and an output that only backward reads, may be
// refused, but never ignored.
#include "tessera/tests/laws/laws.h"

#include <cmath>

namespace tessera::laws {
namespace {

struct Accuracy {
  double step = 2.5e-4, tolerance = 1e-6;
};

struct Point {  // a differentiable call
  const Subject& subject;
  const SampleRow& sample;
  TensorVector in, out;
  Grads dy;
  Accuracy accuracy;
};

Tensor random_like(const Tensor& x, Random& random) {
  std::vector<double> v(static_cast<size_t>(x.numel()));
  for (double& e : v) e = random.normal();
  return place(v, x.shape(), x.dtype());
}

Tensor moved(const Tensor& x, const Tensor& direction, double by) {
  auto v = x.values();
  const auto d = direction.values();
  for (size_t i = 0; i < v.size(); ++i) v[i] += by * d[i];
  return place(v, x.shape(), x.dtype());
}

Grads vjp(const Point& p, const Grads& dy, const Needs& needs) {
  const Saves& saves = p.subject.row->saves;
  TensorVector in, out;
  for (size_t i = 0; i < p.in.size(); ++i) in.push_back(saves.saves_input(i) ? p.in[i] : Tensor());
  for (size_t i = 0; i < p.out.size(); ++i)
    out.push_back(saves.saves_output(i) ? p.out[i] : Tensor());
  const MetaArray in_metas(p.in), out_metas(p.out);
  Grads g = p.subject.vjp(p.sample.op.get(), Saved(in, out, in_metas, out_metas), dy, needs);
  while (g.size() < p.in.size()) g.push_back(Tensor());
  return g;
}

// Random weights of an output; none where it is infinite (rows that see nothing).
Tensor weights_of(const Tensor& y, Random& random) {
  auto v = y.values();
  for (double& e : v) e = std::isfinite(e) ? random.normal() : 0;
  return place(v, y.shape(), y.dtype());
}

double loss(const Point& p, const TensorVector& in) {
  double sum = 0;
  const TensorVector out = run(p.subject, p.sample.op.get(), in);
  for (size_t o = 0; o < out.size(); ++o) {
    if (!p.dy[o].defined()) continue;
    const auto weights = p.dy[o].values(), values = out[o].values();
    for (size_t i = 0; i < values.size(); ++i) sum += weights[i] == 0 ? 0 : weights[i] * values[i];
  }
  return sum;
}

bool varies(const Tensor& x) {
  return x.defined() && (x.dtype() == DType::f64 || x.dtype() == DType::f32);
}

void against_differences(const Point& p, const Grads& g, const std::vector<size_t>& inputs,
                         Random& random, Report& report) {
  TensorVector directions(p.in.size());
  double analytic = 0, size = 0;
  for (size_t i : inputs) {
    directions[i] = random_like(p.in[i], random);
    if (!g[i].defined()) continue;
    analytic += dot(g[i], directions[i]);
    size += norm(g[i]) * norm(directions[i]);
  }
  const auto at = [&](double by) {
    TensorVector in = p.in;
    for (size_t i : inputs) in[i] = moved(p.in[i], directions[i], by);
    return loss(p, in);
  };
  const double e = p.accuracy.step;
  const double numeric = (8 * (at(e) - at(-e)) - (at(2 * e) - at(-2 * e))) / (12 * e);
  std::optional<std::string> problem;
  const double scale = std::max({size, std::abs(numeric), 0.1});
  if (!(std::abs(numeric - analytic) <= p.accuracy.tolerance * scale)) {
    problem =
        concat("vjp gives ", analytic, " along a random direction, finite differences ", numeric);
  }
  std::string which;
  for (size_t i : inputs) which += concat(which.empty() ? "" : ", ", i);
  report.check(p.sample, problem, "gradient of input ", which);
}

void in_parts(const Point& p, const Grads& whole, const std::vector<size_t>& inputs,
              Report& report) {
  for (size_t i : inputs) {
    Needs one(p.in.size());
    one.set(i);
    const Grads g = vjp(p, p.dy, one);
    if (g[i].defined() != whole[i].defined()) {
      report.check(p.sample, "is undefined in one of them", "gradient ", i, " alone and with all");
    } else if (g[i].defined()) {
      report.check(p.sample, difference(g[i], whole[i], 0), "gradient ", i, " alone and with all");
    }
  }
}

// dy of one output at a time, the others undefined: must be what zeros give.
void undefined_is_zero(const Point& p, const Needs& needs, const std::vector<size_t>& inputs,
                       Report& report) {
  for (size_t o = 0; o < p.out.size(); ++o) {
    if (!p.dy[o].defined()) continue;
    Grads alone, zeros;
    for (size_t k = 0; k < p.out.size(); ++k) {
      alone.push_back(k == o ? p.dy[k] : Tensor());
      zeros.push_back(k == o || !p.dy[k].defined() ? p.dy[k] : moved(p.dy[k], p.dy[k], -1));
    }
    const Grads a = vjp(p, alone, needs), z = vjp(p, zeros, needs);
    for (size_t i : inputs) {
      const auto values = [&](const Tensor& t) {
        return t.defined() ? t.values() : std::vector<double>(static_cast<size_t>(p.in[i].numel()));
      };
      report.check(p.sample, difference(values(a[i]), values(z[i]), 1e-9), "gradient ", i,
                   " with dy of output ", o, " alone, others undefined or zero");
    }
  }
}

// True if the vjp refuses with its own AutogradError.
bool refused(const Point& p, const Grads& dy, const Needs& needs) {
  try {
    (void)vjp(p, dy, needs);
    return false;
  } catch (const AutogradError& e) {
    return std::string_view(e.what()).starts_with(concat('[', p.subject.row->name, ']'));
  }
}

// Leaves out of dy the outputs that the vjp refuses to be differentiated by.
void drop_refused_outputs(Point& p, const Needs& needs, Report& report) {
  for (size_t o = 0; p.out.size() > 1 && o < p.out.size(); ++o) {
    if (!p.dy[o].defined()) continue;
    Grads alone(p.out.size());
    alone[o] = p.dy[o];
    if (!refused(p, alone, needs)) continue;
    report.check(p.sample, {}, "output ", o, " is refused");
    p.dy[o] = Tensor();
  }
}

}  // namespace

Outcome gradient_law(const Subject& s) {
  Report report(s);
  if (!s.vjp) return report.take();
  const DType t = exact_dtype(*s.row);
  for (const SampleRow& sample : good_samples(s)) {
    report.attempt(sample, "the gradient check", [&] {
      Random random(concat(s.row->name, " gradient"));
      Point p{s, sample, inputs_of(sample, t, random), {}, {}, {}};
      p.out = run(s, sample.op.get(), p.in);
      Needs needs(p.in.size());
      std::vector<size_t> inputs;
      bool lossy = false, any = false;
      for (const Tensor& y : p.out) {
        p.dy.push_back(varies(y) ? weights_of(y, random) : Tensor());
        any |= varies(y) && y.numel() > 0;
        lossy |= varies(y) && y.dtype() == DType::f32;
      }
      for (size_t i = 0; i < p.in.size(); ++i) {
        if (!varies(p.in[i])) continue;
        if (!sample.in[i].differentiable) {
          Needs constant(p.in.size());
          constant.set(i);
          report.check(sample,
                       refused(p, p.dy, constant)
                           ? std::nullopt
                           : std::optional<std::string>("has a gradient or is ignored"),
                       "input ", i, ", a constant,");
          continue;
        }
        inputs.push_back(i);
        needs.set(i);
        lossy |= p.in[i].dtype() == DType::f32;
      }
      if (!any || inputs.empty()) return;
      if (lossy) p.accuracy = {2e-2, 1e-3};
      drop_refused_outputs(p, needs, report);
      const Grads g = vjp(p, p.dy, needs);
      for (size_t i : inputs) {
        if (g[i].defined() &&
            (g[i].shape() != p.in[i].shape() || g[i].dtype() != p.in[i].dtype())) {
          return report.fail(sample, "gradient ", i, " is ", g[i].meta(), ", its input ",
                             p.in[i].meta());
        }
        against_differences(p, g, {i}, random, report);
      }
      if (inputs.size() > 1) {
        against_differences(p, g, inputs, random, report);
        in_parts(p, g, inputs, report);
      }
      if (p.out.size() > 1) undefined_is_zero(p, needs, inputs, report);
    });
  }
  return report.take();
}

}  // namespace tessera::laws
