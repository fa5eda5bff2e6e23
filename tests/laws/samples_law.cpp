// SPDX-License-Identifier: Apache-2.0
// Samples law: whether a room's samples are enough to judge it by.
#include "tessera/tests/laws/pieces.h"

#include <algorithm>
#include <map>
#include <set>

namespace tessera::laws {
namespace {

void judge_dtypes(const Subject& s, const std::vector<SampleRow>& good, Report& report) {
  DTypeSet seen;
  for (const SampleRow& sample : good) {
    const auto fixed = [](const Arg& a) { return !a.defined || a.dtype; };
    if (std::ranges::all_of(sample.in, fixed)) {
      Random random("samples");
      for (const TensorMeta& m :
           output_metas(s, sample.op.get(), inputs_of(sample, exact_dtype(*s.row), random)))
        seen = seen | dtypes_of(m.dtype);
      for (const Arg& a : sample.in) {
        if (a.defined) seen = seen | dtypes_of(*a.dtype);
      }
    } else {
      seen = seen | s.row->dtypes;
    }
  }
  std::optional<std::string> problem;
  if ((seen.bits & s.row->dtypes.bits) != s.row->dtypes.bits)
    problem = concat("run only ", seen, " of ", s.row->dtypes);
  report.check(good[0], problem, "the samples' dtypes");
}

void judge_attributes(const Subject& s, const std::vector<SampleRow>& good, Report& report) {
  std::vector<std::set<std::string>> values;
  for (const SampleRow& sample : good) {
    const auto texts = s.row->attributes(sample.op.get());
    values.resize(std::max(values.size(), texts.size()));
    for (size_t i = 0; i < texts.size(); ++i) values[i].insert(texts[i]);
  }
  for (size_t i = 0; i < values.size(); ++i) {
    report.check(good[0],
                 values[i].size() >= 2 ? std::nullopt
                                       : std::optional(concat("is always ", *values[i].begin())),
                 "attribute ", i);
  }
}

// Letters are one factor in all samples; factors without a letter are judged together, by the
// largest sample.
void judge_factors(const Subject& s, const std::vector<SampleRow>& good, Report& report) {
  std::map<char, int64_t> largest;
  for (const SampleRow& sample : good) {
    Random random("samples");
    const Call call(s, sample, inputs_of(sample, exact_dtype(*s.row), random));
    int64_t smallest = -1;
    for (const Factor& f : call.rule.factors()) {
      if (f.letter) largest[f.letter] = std::max(largest[f.letter], f.size);
      else smallest = smallest < 0 ? f.size : std::min(smallest, f.size);
    }
    if (smallest >= 0) largest[0] = std::max(largest[0], smallest);
  }
  for (const auto& [letter, size] : largest) {
    std::optional<std::string> problem;
    if (size < 5) problem = concat("is never larger than ", size, "; give a sample with 5 or more");
    if (letter) report.check(good[0], problem, "factor ", letter);
    else report.check(good[0], problem, "the smallest factor without a letter");
  }
}

}  // namespace

Outcome samples_law(const Subject& s) {
  Report report(s);
  const auto good = good_samples(s);
  const auto bad =
      std::ranges::count_if(s.samples, [](const SampleRow& r) { return !r.throws.empty(); });
  if (good.empty()) {
    Outcome o;
    o.failures.push_back({std::string(s.row->name), "samples", "there is no good sample"});
    return o;
  }
  report.check(good[0], bad > 0 ? std::nullopt : std::optional<std::string>("there is none"),
               "bad sample");
  const bool known =
      std::ranges::any_of(s.samples, [](const SampleRow& r) { return !r.known.empty(); });
  report.check(good[0],
               known ? std::nullopt
                     : std::optional<std::string>(
                           "there is none; write down one result, known(op, inputs, outputs), from "
                           "a source that is not this op's code, such as PyTorch"),
               "known value");
  report.attempt(good[0], "judging the samples", [&] {
    if (s.row->kind != OpKind::view) judge_dtypes(s, good, report);
    judge_attributes(s, good, report);
    if (s.sharding) judge_factors(s, good, report);
  });
  return report.take();
}

}  // namespace tessera::laws
