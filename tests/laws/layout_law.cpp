// SPDX-License-Identifier: Apache-2.0
// Layout law. Inputs that lie transposed or with gaps in their storage, or repeat one row by stride
// 0, give what contiguous ones give: bit for bit in pointwise ops, else within rounding. Each
// factor made 0 in turn gives outputs of the right shape that are fully written, or a typed error
// where a reduction has nothing to reduce.
#include "tessera/tests/laws/pieces.h"

#include <algorithm>

namespace tessera::laws {
namespace {

double allowed(const OpRow& row, const Tensor& y) {
  if (row.kind == OpKind::view) return 0;
  return y.dtype() == DType::f64   ? 1e-12
         : y.dtype() == DType::f32 ? 1e-5
                                   : tolerance_of(y.dtype()) / 2;
}

void compare(const Subject& s, const SampleRow& sample, const TensorVector& in,
             const TensorVector& want, const std::string& what, Report& report) {
  report.attempt(sample, what, [&] {
    TensorVector got;
    try {
      got = run(s, sample.op.get(), in);
    } catch (const ShapeError&) {
      // No strides may exist for a view of such a tensor; its public function copies then.
      if (s.row->kind != OpKind::view) throw;
      return report.check(sample, {}, what);
    }
    for (size_t o = 0; o < want.size(); ++o)
      report.check(sample,
                   difference(got[o], want[o], allowed(*s.row, want[o]), terms_of(in, want[o])),
                   what, ", output ", o);
  });
}

bool written(const Subject& s, const TensorVector& in, size_t i) {
  return s.row->kind == OpKind::in_place && s.row->writes(i, in.size());
}

void strided(const Subject& s, const SampleRow& sample, const TensorVector& in,
             const TensorVector& want, Report& report) {
  for (const Order order : {Order::transposed, Order::gapped}) {
    const std::string how = order == Order::transposed ? "transposed" : "gapped";
    TensorVector all = in;
    for (size_t i = 0; i < in.size(); ++i) {
      if (!in[i].defined() || written(s, in, i)) continue;
      TensorVector one = in;
      one[i] = all[i] = clone(in[i], order);
      if (in.size() > 1) compare(s, sample, one, want, concat("input ", i, " ", how), report);
    }
    compare(s, sample, all, want, concat("all inputs ", how), report);
  }
}

void broadcast(const Subject& s, const SampleRow& sample, const TensorVector& in, Report& report) {
  for (size_t i = 0; i < in.size(); ++i) {
    if (!in[i].defined() || written(s, in, i)) continue;
    for (int d = 0; d < in[i].rank(); ++d) {
      if (in[i].shape()[d] < 2) continue;
      report.attempt(sample, concat("input ", i, " broadcast along dim ", d), [&] {
        Shape strides = in[i].strides();
        strides[d] = 0;
        TensorVector repeated = in, copied = in;
        repeated[i] = alias(in[i], in[i].shape(), strides, in[i].offset());
        copied[i] = clone(repeated[i]);
        const TensorVector want = run(s, sample.op.get(), copied);
        compare(s, sample, repeated, want, concat("input ", i, " broadcast along dim ", d), report);
      });
    }
  }
}

void nothing(const Subject& s, const SampleRow& sample, const TensorVector& in, Report& report) {
  const Call call(s, sample, in);
  if (rule_problem(call)) return;  // the meta law's to report
  for (int f = 0; f < static_cast<int>(call.rule.factors().size()); ++f) {
    const Cut empty{f, {0, call.rule.factors()[static_cast<size_t>(f)].size}};
    const size_t at = 0;
    const Piece piece = piece_of(call, {&empty, 1}, {&at, 1});
    const auto op = detail::local_op(*s.row, sample.op.get(), piece);
    try {
      const TensorVector none = cut_inputs(call, piece);
      const TensorVector a = run(s, op.get(), none, 0xff), b = run(s, op.get(), none, 0x5a);
      const auto metas = output_metas(s, op.get(), none);
      for (size_t o = 0; o < a.size(); ++o) {
        std::optional<std::string> problem;
        if (a[o].shape() != metas[o].shape)
          problem = concat("is ", a[o].meta(), ", expected ", metas[o]);
        else if (s.row->kind == OpKind::compute && guards_damaged(a[o], 0xff))
          problem = "was written beyond its end";
        else problem = difference(a[o], b[o], 0);
        report.check(sample, problem, "factor ", f, " of size 0, output ", o);
      }
    } catch (const Error& e) {
      const bool indexes = std::ranges::any_of(
          in, [](const Tensor& t) { return t.defined() && !is_floating(t.dtype()); });
      const bool typed = e.kind() == "ShapeError" || e.kind() == "ValueError" ||
                         (e.kind() == "IndexError" && indexes);
      report.check(sample,
                   typed ? std::nullopt : std::optional(concat("threw ", e.kind(), ": ", e.what())),
                   "factor ", f, " of size 0");
    }
  }
}

}  // namespace

Outcome layout_law(const Subject& s) {
  Report report(s);
  for (const SampleRow& sample : good_samples(s)) {
    for (const DType t : run_dtypes(*s.row, sample)) {
      if (t != exact_dtype(*s.row) && t != DType::f32 && t != DType::bf16) continue;
      report.attempt(sample, concat("in ", t, ", a call"), [&] {
        Random random(concat(s.row->name, " layout ", t));
        const TensorVector in = inputs_of(sample, t, random);
        const TensorVector want = run(s, sample.op.get(), in);
        strided(s, sample, in, want, report);
        broadcast(s, sample, in, report);
        if (s.sharding) nothing(s, sample, in, report);
        report.check(sample, {}, "contiguous");
      });
    }
  }
  return report.take();
}

}  // namespace tessera::laws
