// SPDX-License-Identifier: Apache-2.0
// Reference law. Each dtype against the room's most exact kernel (f64 for floats, i64 for integers)
// on the same rounded inputs, by the norm of the tensor. Integer and bool outputs (indices,
// comparisons) must agree exactly.
#include "tessera/tests/laws/laws.h"

#include <algorithm>
#include <cmath>

namespace tessera::laws {
namespace {

// The dtype to compare `t` with; `t` itself where there is none better.
DType reference_for(const OpRow& row, DType t) {
  if (is_floating(t))
    return row.dtypes.has(DType::f64) ? DType::f64 : row.dtypes.has(DType::f32) ? DType::f32 : t;
  for (DType r : {DType::i64, DType::f64}) {
    if (r != t && row.dtypes.has(r)) return r;
  }
  return t;
}

TensorVector converted(const SampleRow& sample, const TensorVector& in, DType to) {
  TensorVector out;
  for (size_t i = 0; i < in.size(); ++i) {
    const DType t = sample.in[i].type(to);
    out.push_back(in[i].defined() && t != in[i].dtype() ? place(in[i].values(), in[i].shape(), t)
                                                        : in[i]);
  }
  return out;
}

// Integer arithmetic rounds where real arithmetic does not: only whole results compare.
bool comparable(const Tensor& got, const std::vector<double>& want) {
  return is_floating(got.dtype()) || std::ranges::all_of(want, [](double v) {
           return v == std::floor(v) && std::abs(v) < 2e9;
         });
}

}  // namespace

Outcome reference_law(const Subject& s) {
  Report report(s);
  if (s.row->kind == OpKind::view) return report.take();
  for (const SampleRow& sample : good_samples(s)) {
    for (const DType t : run_dtypes(*s.row, sample)) {
      const DType exact = reference_for(*s.row, t);
      if (exact == t) continue;
      report.attempt(sample, concat("in ", t, ", a call"), [&] {
        Random random(concat(s.row->name, " reference ", t));
        const TensorVector in = inputs_of(sample, t, random);
        const TensorVector got = run(s, sample.op.get(), in);
        const TensorVector want = run(s, sample.op.get(), converted(sample, in, exact));
        for (size_t o = 0; o < got.size(); ++o) {
          const auto values = want[o].values();
          if (got[o].shape() != want[o].shape()) {
            report.check(sample, concat("is ", got[o].meta(), " and ", want[o].meta()), "output ",
                         o, " in ", t, " and ", exact);
          } else if (comparable(got[o], values)) {
            // The looser of the two: a result may be kept wider than the inputs it was made from.
            const double tolerance = is_floating(got[o].dtype())
                                         ? std::max(tolerance_of(got[o].dtype()), tolerance_of(t))
                                         : 0;
            report.check(sample,
                         difference(got[o].values(), values, tolerance, terms_of(in, got[o])),
                         "output ", o, " in ", t, " against ", exact);
          }
        }
      });
    }
  }
  return report.take();
}

}  // namespace tessera::laws
