// SPDX-License-Identifier: Apache-2.0
// What rooms leave out, with their sentences, and the sharding rule of each op, as text under
// review. Set TESSERA_UPDATE_GOLDENS=1 to write the files anew.
#include "tessera/autograd/autograd.h"
#include "tessera/tests/laws/every_op.h"
#include "tessera/tests/laws/pieces.h"
#include "tessera/tests/support/expect_golden.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

namespace tessera::laws {
namespace {

using test::expect_golden;

Call first_call(const Subject& s, const SampleRow& sample) {
  Random random("goldens");
  return Call(s, sample, inputs_of(sample, exact_dtype(*s.row), random));
}

TEST(LawGoldens, OptOuts) {
  const Session session({.threads = 1});
  std::ostringstream text;
  for (const OpRow* row : every_row()) {
    if (!row->not_differentiable.empty())
      text << row->name << ": not differentiable: " << row->not_differentiable << '\n';
    if (!row->not_shardable.empty())
      text << row->name << ": not shardable: " << row->not_shardable << '\n';
    if (!row->not_on_cuda.empty())
      text << row->name << ": not on CUDA: " << row->not_on_cuda << '\n';
    const Subject s = subject_of(*row);
    std::set<size_t> constants;
    for (const SampleRow& sample : good_samples(s)) {
      for (size_t i = 0; i < sample.in.size(); ++i) {
        if (!sample.in[i].differentiable) constants.insert(i);
      }
    }
    for (const size_t i : constants) text << row->name << ": input " << i << " is a constant\n";
    if (!row->sharding) continue;
    std::set<std::string> strict;
    for (const SampleRow& sample : good_samples(s))
      strict.emplace(first_call(s, sample).rule.strict_reason());
    for (const auto& why : strict) {
      if (!why.empty()) text << row->name << ": stricter rule: " << why << '\n';
    }
  }
  expect_golden("tests/laws/opt_outs.txt", text.str());
}

TEST(LawGoldens, Rules) {
  const Session session({.threads = 1});
  std::ostringstream text;
  for (const OpRow* row : every_row()) {
    if (!row->sharding) continue;
    const Subject s = subject_of(*row);
    const auto good = good_samples(s);
    if (good.empty()) continue;
    text << row->name << ": " << whole_text(first_call(s, good[0]).rule);
    text << '\n';
  }
  expect_golden("tests/laws/rules.txt", text.str());
}

}  // namespace
}  // namespace tessera::laws
