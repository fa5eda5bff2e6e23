// SPDX-License-Identifier: Apache-2.0
// Linearity law. Declared linear inputs are split into three random, unlike summands; the results
// of the summands must add up. A monotone op commutes with the elementwise maximum. An exact
// linearity that is not declared would cost communication for nothing: an error unless the rule
// says why.
#include "tessera/tests/laws/pieces.h"

#include <algorithm>
#include <map>

namespace tessera::laws {
namespace {

std::vector<int> floating(const TensorVector& in) {
  std::vector<int> all;
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i].defined() && is_floating(in[i].dtype())) all.push_back(static_cast<int>(i));
  }
  return all;
}

// The sum over three summands of `group`, against the whole.
std::optional<std::string> sum_problem(const Call& c, const TensorVector& whole,
                                       const std::vector<int>& group, Random& random) {
  std::vector<TensorVector> parts(3, c.in);
  double tolerance = 0;
  for (int g : group) {
    const Tensor& x = c.in[static_cast<size_t>(g)];
    if (!x.defined()) continue;
    if (!is_floating(x.dtype())) return concat("input ", g, " is ", x.meta(), ": no sum of parts");
    tolerance = std::max(tolerance, tolerance_of(x.dtype()));
    std::vector<double> a(static_cast<size_t>(x.numel())), b = a, rest = x.values();
    for (size_t i = 0; i < a.size(); ++i) {
      a[i] = 0.7 * random.normal() + 0.1;
      b[i] = 1.9 * random.normal() - 0.4;
      rest[i] -= a[i] + b[i];
    }
    parts[0][static_cast<size_t>(g)] = place(a, x.shape(), x.dtype());
    parts[1][static_cast<size_t>(g)] = place(b, x.shape(), x.dtype());
    parts[2][static_cast<size_t>(g)] = place(rest, x.shape(), x.dtype());
  }
  for (size_t o = 0; o < whole.size(); ++o) {
    if (whole[o].dtype() == DType::bool_)
      return concat("output ", o, " is ", whole[o].meta(), ": truth has no sum of parts");
  }
  std::vector<std::vector<double>> sums;
  for (const TensorVector& in : parts) {
    const TensorVector out = run(c.subject, c.sample.op.get(), in);
    for (size_t o = 0; o < out.size(); ++o) {
      const auto v = out[o].values();
      if (o == sums.size()) sums.push_back(v);
      else std::ranges::transform(sums[o], v, sums[o].begin(), std::plus());
    }
  }
  for (size_t o = 0; o < whole.size(); ++o) {
    const double allowed = std::max(tolerance, tolerance_of(whole[o].dtype())) * 10;
    if (const auto problem = difference(sums[o], whole[o].values(), allowed))
      return concat("output ", o, " ", *problem);
  }
  return {};
}

std::optional<std::string> monotone_problem(const Call& c, Random& random) {
  const DType t = exact_dtype(*c.subject.row);
  TensorVector x, y, top;
  for (size_t i = 0; i < c.in.size(); ++i) {
    const Arg& arg = c.sample.in[i];
    const DType d = arg.type(t);
    auto a = values_for(arg, d, random), b = values_for(arg, d, random);
    x.push_back(place(a, arg.shape, d));
    y.push_back(place(b, arg.shape, d));
    std::ranges::transform(a, b, a.begin(), [](double p, double q) { return std::max(p, q); });
    top.push_back(place(a, arg.shape, d));
  }
  const void* op = c.sample.op.get();
  const auto fx = run(c.subject, op, x), fy = run(c.subject, op, y), ftop = run(c.subject, op, top);
  for (size_t o = 0; o < ftop.size(); ++o) {
    auto a = fx[o].values();
    const auto b = fy[o].values();
    const bool up = c.rule.monotone() > 0;
    std::ranges::transform(
        a, b, a.begin(), [&](double p, double q) { return up ? std::max(p, q) : std::min(p, q); });
    if (const auto problem = difference(ftop[o].values(), a, 0))
      return concat("output ", o, " ", *problem);
  }
  return {};
}

// Neither vacuous nor by accident: every factor has two elements at least, and the result is not
// zero.
bool judges(const Call& c, const TensorVector& whole) {
  const auto factors = c.rule.factors();
  return !factors.empty() &&
         std::ranges::all_of(factors, [](const Factor& f) { return f.size >= 2; }) &&
         std::ranges::any_of(whole, [](const Tensor& y) { return norm(y) > 0; });
}

struct Candidate {
  const SampleRow* sample = nullptr;
  bool exact = true;
};

}  // namespace

Outcome linearity_law(const Subject& s) {
  Report report(s);
  if (!s.sharding) return report.take();
  std::map<std::string, Candidate> undeclared;
  const auto samples = good_samples(s);
  for (const SampleRow& sample : samples) {
    report.attempt(sample, "the linearity check", [&] {
      Random random(concat(s.row->name, " linearity"));
      const Call call(s, sample, inputs_of(sample, exact_dtype(*s.row), random));
      const TensorVector whole = run(s, sample.op.get(), call.in);
      auto declared = call.rule.linearities();
      for (auto& group : declared) {
        std::ranges::sort(group);
        report.check(sample, sum_problem(call, whole, group, random), "declared linear in ",
                     group.size(), " inputs from ", group.front());
        std::erase_if(group, [&](int i) { return !call.in[static_cast<size_t>(i)].defined(); });
      }
      if (call.rule.monotone() != 0)
        report.check(sample, monotone_problem(call, random), "declared monotone");

      const std::vector<int> all = floating(call.in);
      if (!call.rule.strict_reason().empty() || !judges(call, whole)) return;
      std::vector<std::vector<int>> groups;
      for (int i : all) groups.push_back({i});
      if (all.size() > 1) groups.push_back(all);
      std::string attributes;
      for (const auto& a : s.row->attributes(sample.op.get())) attributes += a + ", ";
      for (const Tensor& x : call.in) attributes += x.defined() ? "" : "one left out, ";
      for (const auto& group : groups) {
        Candidate& c = undeclared[concat(
            group.size() > 1 ? "all inputs" : concat("input ", group[0]), " {", attributes, "}")];
        c.sample = &sample;
        if (!c.exact) continue;
        try {
          c.exact = std::ranges::find(declared, group) == declared.end() &&
                    !sum_problem(call, whole, group, random);
        } catch (const Error&) {
          c.exact = false;  // the op refuses such values
        }
      }
    });
  }
  for (const auto& [key, c] : undeclared) {
    report.check(*c.sample,
                 c.exact ? std::optional<std::string>(
                               "exact, but not declared; add .linear, or say stricter_because")
                         : std::nullopt,
                 "linear in ", key);
  }
  return report.take();
}

}  // namespace tessera::laws
