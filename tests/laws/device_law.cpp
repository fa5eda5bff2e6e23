// SPDX-License-Identifier: Apache-2.0
// Device law. CUDA gives what the CPU gives within the dtype's tolerance, and twice the same bits
// when asked to.
#include "tessera/core/context.h"
#include "tessera/tests/laws/laws.h"

namespace tessera::laws {
namespace {

// Through the real call; in-place ops write copies, which are returned.
TensorVector on_cuda(const OpRow& row, const void* op, const TensorVector& in) {
  TensorVector there;
  for (const Tensor& x : in) there.push_back(x.defined() ? to_device(clone(x), cuda()) : Tensor());
  TensorList out;
  detail::call(row, op, there, out);
  TensorVector result(out.begin(), out.end());
  for (size_t i = 0; row.kind == OpKind::in_place && i < there.size(); ++i) {
    if (row.writes(i, there.size())) result.push_back(there[i]);
  }
  for (Tensor& y : result) y = to_device(y, kCpu);
  return result;
}

}  // namespace

Outcome device_law(const Subject& s) {
  Report report(s);
  const bool before = Context::current().options.deterministic;
  Context::current().options.deterministic = true;
  for (const SampleRow& sample : good_samples(s)) {
    for (const DType t : run_dtypes(*s.row, sample)) {
      report.attempt(sample, concat("in ", t, ", on CUDA"), [&] {
        Random random(concat(s.row->name, " device ", t));
        const TensorVector in = inputs_of(sample, t, random);
        const TensorVector want = run(s, sample.op.get(), in);
        const TensorVector got = on_cuda(*s.row, sample.op.get(), in),
                           again = on_cuda(*s.row, sample.op.get(), in);
        for (size_t o = 0; o < want.size(); ++o) {
          report.check(
              sample,
              difference(got[o], want[o], tolerance_of(want[o].dtype()), terms_of(in, want[o])),
              "output ", o, " in ", t, ", CUDA against CPU");
          report.check(sample, difference(again[o], got[o], 0), "output ", o, " in ", t,
                       ", CUDA twice");
        }
      });
    }
  }
  Context::current().options.deterministic = before;
  return report.take();
}

}  // namespace tessera::laws
