// SPDX-License-Identifier: Apache-2.0
// Sharding law. Every free factor is cut in several ways, alone and in pairs (two mesh axes); the
// pieces, run by op.local and joined, are the whole. A replicated factor whose cut would be exact
// too is needless, and an error unless the rule says why.
#include "tessera/tests/laws/pieces.h"

#include <map>
#include <optional>
#include <span>

namespace tessera::laws {
namespace {

bool exact_when_cut(const Call& call, const TensorVector& whole, int factor) {
  for (const bool plain : {false, true}) {
    for (const Join join : {Join::sum, Join::max, Join::min}) {
      bool exact = true;
      for (const Cut& cut : cuts_of(call.rule, factor)) {
        if (cut.sizes.back() == 0) continue;
        try {
          exact = exact && !pieces_problem(call, whole, {&cut, 1}, {plain, join});
        } catch (const std::exception&) {
          exact = false;
        }
      }
      if (exact) return true;
    }
  }
  return false;
}

// A replicated factor is needless only if it is in all samples of the same attributes.
struct Replicated {
  const SampleRow* sample = nullptr;
  bool needless = true;
};

// Plans are kept by plan_key: ops of one key must have one meta and one rule.
std::optional<std::string> key_problem(const Subject& s, const Call& call,
                                       std::span<const SampleRow> others) {
  const MetaArray metas(call.in);
  const std::string rule = whole_text(call.rule);
  for (const SampleRow& other : others) {
    if (!s.row->same(call.sample.op.get(), other.op.get())) continue;
    if (s.row->key_hash(call.sample.op.get()) != s.row->key_hash(other.op.get()))
      return "equal keys have unlike hashes";
    const auto out = output_metas(s, other.op.get(), call.in);
    for (size_t o = 0; o < out.size(); ++o) {
      if (concat(out[o]) != concat(call.out[o]))
        return concat("an op of the same plan_key makes ", out[o], " instead of ", call.out[o]);
    }
    const std::string also = whole_text(s.sharding(other.op.get(), metas));
    if (also != rule) return concat("an op of the same plan_key has the rule ", also);
  }
  return {};
}

}  // namespace

Outcome sharding_law(const Subject& s) {
  Report report(s);
  if (!s.sharding) return report.take();
  std::map<std::string, Replicated> replicated;
  const auto samples = good_samples(s);
  for (const SampleRow& sample : samples) {
    report.attempt(sample, "the sharding check", [&] {
      Random random(concat(s.row->name, " sharding"));
      const Call call(s, sample, inputs_of(sample, exact_dtype(*s.row), random));
      if (const auto problem = rule_problem(call)) return report.check(sample, problem, "rule");
      report.check(sample, key_problem(s, call, samples), call.rule.text());
      const TensorVector whole = run(s, sample.op.get(), call.in);
      const auto factors = call.rule.factors();
      const int n = static_cast<int>(factors.size());
      report.check(sample, {}, "rule");
      for (int f = 0; f < n; ++f) {
        const Factor& factor = factors[static_cast<size_t>(f)];
        if (factor.size < 2) continue;
        if (factor.replicate) {
          const auto attributes = s.row->attributes(sample.op.get());
          std::string key = concat(f, factor.letter, " ");
          for (const auto& a : attributes) key += a + ", ";
          Replicated& r = replicated[key];
          r.sample = &sample;
          r.needless =
              r.needless && call.rule.strict_reason().empty() && exact_when_cut(call, whole, f);
          continue;
        }
        for (const Cut& cut : cuts_of(call.rule, f)) {
          report.attempt(sample, cut.text(), [&] {
            report.check(sample, pieces_problem(call, whole, {&cut, 1}), call.rule.text(), ", ",
                         cut.text());
          });
        }
        for (int g = f + 1; g < n; ++g) {
          const int64_t size = factors[static_cast<size_t>(g)].size;
          if (factors[static_cast<size_t>(g)].replicate || size < 2) continue;
          const Cut pair[] = {cuts_of(call.rule, f).back(), {g, {size - 1, 1}}};
          report.attempt(sample, concat(pair[0].text(), " and ", pair[1].text()), [&] {
            report.check(sample, pieces_problem(call, whole, pair), call.rule.text(), ", ",
                         pair[0].text(), " and ", pair[1].text());
          });
        }
      }
    });
  }
  for (const auto& [key, r] : replicated) {
    report.check(*r.sample,
                 r.needless ? std::optional<std::string>(
                                  "its cut would be exact; free it, or say stricter_because")
                            : std::nullopt,
                 "replicated factor ", key);
  }
  return report.take();
}

}  // namespace tessera::laws
