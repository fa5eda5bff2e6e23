// SPDX-License-Identifier: Apache-2.0
// Device law. CUDA gives what the CPU gives within the dtype's tolerance, and twice the same bits
// when asked to, the second time in outputs that hold other bytes; with operands that lie in
// another order of their dims, with gaps, or from an odd element on too. With TESSERA_TEST_FULL=1
// also at the sizes that are timed.
#include "tessera/core/context.h"
#include "tessera/tests/laws/laws.h"
#include "tessera/tests/support/long_form.h"

#include <algorithm>

namespace tessera::laws {

namespace {

// As x lies in its storage, which goes there as a whole: to_device() would let what is contiguous
// begin on 256 bytes.
Tensor moved_to_cuda(const Tensor& x) {
  if (!x.defined()) return {};
  const int64_t n = x.storage().bytes() / item_size(x.dtype());
  const Tensor flat = to_device(alias(x, {n}, {1}, 0), cuda());
  return alias(flat, x.shape(), x.strides(), x.offset());
}

}  // namespace

// An op without inputs makes its output where its attributes say, so that here its kernel is given
// one.
TensorVector run_on_cuda(const Subject& s, const void* op, const TensorVector& in,
                         std::optional<int> poison) {
  const OpRow& row = *s.row;
  TensorVector there, result;
  for (const Tensor& x : in) there.push_back(moved_to_cuda(x));
  if (in.empty() || (poison && row.kind == OpKind::compute)) {
    for (const TensorMeta& m : output_metas(s, op, in))
      result.push_back(to_device(poisoned(m, poison.value_or(0)), cuda()));
    detail::run_kernel(Context::current(), row, op, there, result, cuda());
  } else {
    TensorList out;
    detail::call(row, op, there, out);
    result.assign(out.begin(), out.end());
  }
  for (size_t i = 0; row.kind == OpKind::in_place && i < there.size(); ++i) {
    if (row.writes(i, there.size())) result.push_back(there[i]);
  }
  for (Tensor& y : result) y = to_device(y, kCpu);
  return result;
}

namespace {

// All operands, written ones too, as they lie in `order`.
TensorVector lying(const TensorVector& in, Order order) {
  TensorVector all;
  for (const Tensor& x : in) all.push_back(x.defined() ? clone(x, order) : Tensor());
  return all;
}

// Timed ones too in the long form.
std::vector<SampleRow> samples_of(const Subject& s) {
  std::vector<SampleRow> all = good_samples(s);
  if (test::long_form())
    std::ranges::copy_if(s.samples, std::back_inserter(all), &SampleRow::bench);
  return all;
}

}  // namespace

Outcome device_law(const Subject& s) {
  Report report(s);
  const bool before = Context::current().options.deterministic;
  Context::current().options.deterministic = true;
  for (const SampleRow& sample : samples_of(s)) {
    for (const DType t : run_dtypes(*s.row, sample)) {
      const bool chosen = t == exact_dtype(*s.row) || t == DType::f32;
      if (sample.bench && !chosen) continue;
      report.attempt(sample, concat("in ", t, ", on CUDA"), [&] {
        Random random(concat(s.row->name, " device ", t));
        const TensorVector in = inputs_of(sample, t, random);
        const TensorVector want = run(s, sample.op.get(), in);
        const auto compare = [&](const TensorVector& got, const std::string& what) {
          for (size_t o = 0; o < want.size(); ++o) {
            report.check(
                sample,
                difference(got[o], want[o], tolerance_of(want[o].dtype()), terms_of(in, want[o])),
                "output ", o, " in ", t, ", ", what);
          }
        };
        const TensorVector got = run_on_cuda(s, sample.op.get(), in),
                           again = run_on_cuda(s, sample.op.get(), in, 0x5a);
        compare(got, "CUDA against CPU");
        for (size_t o = 0; o < want.size(); ++o)
          report.check(sample, difference(again[o], got[o], 0), "output ", o, " in ", t,
                       ", CUDA twice");
        if (in.empty() || s.row->kind == OpKind::view || !chosen) return;
        const bool has_third =
            std::ranges::any_of(in, [](const Tensor& x) { return x.defined() && x.rank() > 2; });
        for (const auto& [order, how] :
             {std::pair(Order::transposed, "transposed operands"),
              std::pair(Order::turned, "turned operands"),
              std::pair(Order::gapped, "operands with gaps"),
              std::pair(Order::odd, "operands from an odd element on")}) {
          if (order == Order::turned && !has_third) continue;  // as transposed
          compare(run_on_cuda(s, sample.op.get(), lying(in, order)), concat("CUDA on ", how));
        }
      });
    }
  }
  Context::current().options.deterministic = before;
  return report.take();
}

}  // namespace tessera::laws
