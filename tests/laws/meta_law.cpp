// SPDX-License-Identifier: Apache-2.0
// Meta law. The kernel runs twice into outputs poisoned with different bytes: what differs was not
// written, what it wrote beyond the output damages a guard. Dtypes follow a pattern over all that
// the room takes. Views must stay within the elements of their input.
#include "tessera/tests/laws/pieces.h"

namespace tessera::laws {
namespace {

// First and last element of a view, counted in its storage.
std::pair<int64_t, int64_t> extent(const Tensor& x) {
  int64_t low = x.offset(), high = x.offset();
  for (int d = 0; d < x.rank(); ++d) {
    const int64_t reach = (x.shape()[d] - 1) * x.strides()[d];
    (reach < 0 ? low : high) += reach;
  }
  return {low, high};
}

void judge_view(const Subject& s, const SampleRow& sample, const TensorVector& in, Report& report) {
  const Tensor y = invoke(s, sample.op.get(), in)[0];
  if (y.numel() == 0 || in[0].numel() == 0) return report.check(sample, {}, "view");
  const auto [low, high] = extent(y);
  const auto [first, last] = extent(in[0]);
  std::optional<std::string> problem;
  if (low < first || high > last)
    problem = concat("covers elements ", low, " to ", high, " of the storage, its input ", first,
                     " to ", last);
  report.check(sample, problem, "view");
}

void judge_kernel(const Subject& s, const SampleRow& sample, const TensorVector& in,
                  Report& report) {
  const bool in_place = s.row->kind == OpKind::in_place;
  TensorVector first_out;
  for (const int poison : {0xff, 0x5a}) {
    TensorVector own;
    for (const Tensor& x : in) own.push_back(x.defined() ? clone(x) : Tensor());
    const TensorVector out = invoke(s, sample.op.get(), own, poison);
    for (size_t i = 0; i < own.size(); ++i) {
      if (!own[i].defined() || (in_place && s.row->writes(i, own.size()))) continue;
      std::optional<std::string> problem;
      if (storage_bytes(own[i]) != storage_bytes(clone(in[i]))) problem = "was written";
      report.check(sample, problem, "input ", i);
    }
    for (size_t o = 0; o < out.size(); ++o) {
      std::optional<std::string> problem;
      if (guards_damaged(out[o], in_place ? 0xff : poison)) problem = "was written beyond its end";
      else if (!first_out.empty()) problem = difference(out[o], first_out[o], 0);
      report.check(sample, problem, "output ", o, " ", out[o].meta(), " (two poisons)");
    }
    first_out = out;
  }
}

// An output's dtype is the one chosen, or its wide form (statistics), or the same whatever is
// chosen.
void judge_dtypes(const SampleRow& sample,
                  const std::vector<std::pair<DType, std::vector<TensorMeta>>>& runs,
                  Report& report) {
  Arg statistic;
  statistic.wide = true;
  for (size_t o = 0; o < runs[0].second.size(); ++o) {
    bool same = true, wide = true, fixed = true;
    std::string list;
    for (const auto& [t, out] : runs) {
      same = same && out[o].dtype == t;
      wide = wide && out[o].dtype == statistic.type(t);
      fixed = fixed && out[o].dtype == runs[0].second[o].dtype;
      list += concat(' ', t, " gives ", out[o].dtype, ';');
    }
    report.check(sample,
                 same || wide || fixed ? std::nullopt : std::optional("follows no pattern:" + list),
                 "dtype of output ", o);
  }
}

}  // namespace

Outcome meta_law(const Subject& s) {
  Report report(s);
  for (const SampleRow& sample : good_samples(s)) {
    std::vector<std::pair<DType, std::vector<TensorMeta>>> runs;
    for (const DType t : run_dtypes(*s.row, sample)) {
      report.attempt(sample, concat("in ", t, ", a call"), [&] {
        Random random(concat(s.row->name, " meta ", t));
        const TensorVector in = inputs_of(sample, t, random);
        runs.emplace_back(t, output_metas(s, sample.op.get(), in));
        if (s.sharding) {
          // Before the kernel runs: a wrong shape would send it out of bounds.
          if (const auto problem = rule_problem(Call(s, sample, in)))
            return report.fail(sample, *problem);
        }
        if (s.row->kind == OpKind::view) judge_view(s, sample, in, report);
        else judge_kernel(s, sample, in, report);
      });
    }
    if (!runs.empty() && s.row->kind == OpKind::compute) judge_dtypes(sample, runs, report);
  }
  return report.take();
}

}  // namespace tessera::laws
