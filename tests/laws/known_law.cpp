// SPDX-License-Identifier: Apache-2.0
// Known law. Samples whose results were worked out elsewhere (PyTorch, a textbook, by hand) give
// these results. The other laws compare an op with itself, so they hold for a wrong formula with
// the matching gradient. A dtype that does not hold the inputs exactly is left out.
#include "tessera/tests/laws/laws.h"

#include <algorithm>
#include <cmath>

namespace tessera::laws {
namespace {

bool holds(const Tensor& t, const std::vector<double>& values) {
  return std::ranges::equal(t.values(), values,
                            [](double a, double b) { return a == b || (a != a && b != b); });
}

// Whether these are the sample's inputs to the bit.
bool exact(const SampleRow& sample, const TensorVector& in) {
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i].defined() && !holds(in[i], sample.in[i].list)) return false;
  }
  return true;
}

double known_tolerance(DType of_output, DType chosen) {
  if (!is_floating(of_output)) return 0;
  const auto of = [](DType t) {  // what 8 bits hold exactly they give exactly
    return t == DType::f64 ? 1e-12 : item_size(t) == 1 ? 0 : tolerance_of(t);
  };
  return std::max(of(of_output), of(chosen));
}

// What is wrong with the outputs; `compared` counts those that the dtype can hold.
std::optional<std::string> problem_of(const SampleRow& sample, const TensorVector& out, DType t,
                                      int64_t& compared) {
  if (out.size() != sample.known.size())
    return concat("has ", out.size(), " outputs, expected ", sample.known.size());
  for (size_t o = 0; o < out.size(); ++o) {
    const auto& want = sample.known[o];
    const auto got = out[o].values();
    if (got.size() != want.size())
      return concat("output ", o, " has ", got.size(), " elements, expected ", want.size());
    if (!is_floating(out[o].dtype()) &&
        !holds(from_values(want, out[o].shape(), out[o].dtype()), want))
      continue;
    ++compared;
    if (auto problem = difference(got, want, known_tolerance(out[o].dtype(), t)))
      return concat("output ", o, ": ", *problem);
  }
  return {};
}

}  // namespace

Outcome known_law(const Subject& s) {
  Report report(s);
  for (const SampleRow& sample : s.samples) {
    if (sample.known.empty()) continue;
    int64_t compared = 0;
    for (const DType t : run_dtypes(*s.row, sample)) {
      report.attempt(sample, concat("the known value in ", t), [&] {
        Random random("known");
        const TensorVector in = inputs_of(sample, t, random);
        if (!exact(sample, in)) return;
        report.check(sample, problem_of(sample, run(s, sample.op.get(), in), t, compared),
                     "the known value in ", t);
      });
    }
    if (compared == 0) {
      report.fail(sample, "the known value is compared in no dtype: list every element of every ",
                  "input, with numbers that one of ", s.row->dtypes, " holds exactly");
    }
  }
  return report.take();
}

}  // namespace tessera::laws
