// SPDX-License-Identifier: Apache-2.0
// Each law of each op as one test: Laws/Gradient.Holds/softmax.
#include "tessera/tests/laws/laws.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/process.h"
#include "tessera/tests/laws/every_op.h"
#include "tessera/tests/laws/waivers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

namespace tessera::laws {
namespace {

constexpr size_t kShown = 8;  // failures of one law of one op

std::string listing(const std::vector<Failure>& failures) {
  std::ostringstream os;
  os << "TESSERA_TEST_SEED=" << test_seed() << ", " << failures.size() << " failures\n";
  for (size_t i = 0; i < std::min(kShown, failures.size()); ++i) os << "  " << failures[i] << '\n';
  return os.str();
}

const Waiver* waiver(std::string_view op, std::string_view law) {
  const auto it =
      std::ranges::find_if(kWaivers, [&](const Waiver& w) { return w.op == op && w.law == law; });
  return it == kWaivers.end() ? nullptr : &*it;
}

class OfEveryOp : public testing::TestWithParam<const OpRow*> {
 protected:
  void holds(std::string_view name) const {
    const Session session({.threads = 1});  // the determinism law sets its own
    const OpRow& row = *GetParam();
    const Outcome outcome =
        judged_by(*std::ranges::find(laws(), name, &Law::name), subject_of(row));
    if (const Waiver* w = waiver(row.name, name)) {
      EXPECT_FALSE(outcome.failures.empty())
          << "the law is kept: delete its waiver (" << w->reason << ')';
    } else {
      EXPECT_TRUE(outcome.failures.empty()) << listing(outcome.failures);
    }
  }
};

class Meta : public OfEveryOp {};
class Known : public OfEveryOp {};
class Gradient : public OfEveryOp {};
class SecondOrder : public OfEveryOp {};
class Reference : public OfEveryOp {};
class Layout : public OfEveryOp {};
class Errors : public OfEveryOp {};
class Sharding : public OfEveryOp {};
class Linearity : public OfEveryOp {};
class Slices : public OfEveryOp {};
class Samples : public OfEveryOp {};
class Determinism : public OfEveryOp {};
class Cuda : public OfEveryOp {};
class Distributed : public OfEveryOp {};

TEST_P(Meta, Holds) { holds("Meta"); }
TEST_P(Known, Holds) { holds("Known"); }
TEST_P(Gradient, Holds) { holds("Gradient"); }
TEST_P(SecondOrder, Holds) { holds("SecondOrder"); }
TEST_P(Reference, Holds) { holds("Reference"); }
TEST_P(Layout, Holds) { holds("Layout"); }
TEST_P(Errors, Holds) { holds("Errors"); }
TEST_P(Sharding, Holds) { holds("Sharding"); }
TEST_P(Linearity, Holds) { holds("Linearity"); }
TEST_P(Slices, Holds) { holds("Slices"); }
TEST_P(Samples, Holds) { holds("Samples"); }
TEST_P(Determinism, Holds) { holds("Determinism"); }

TEST_P(Cuda, Holds) {
  const Session session({.threads = 1});  // the determinism law sets its own
  if (!Process::get().cuda_available()) GTEST_SKIP() << "no GPU";
  if (!GetParam()->not_on_cuda.empty()) GTEST_SKIP() << GetParam()->not_on_cuda;
  const Outcome outcome = device_law(subject_of(*GetParam()));
  EXPECT_TRUE(outcome.failures.empty()) << listing(outcome.failures);
  EXPECT_GT(outcome.checks, 0);
}

TEST_P(Distributed, Holds) {
  if (!GetParam()->sharding) GTEST_SUCCEED() << GetParam()->not_shardable;
  else {
    const Outcome outcome = distributed_law(subject_of(*GetParam()));
    EXPECT_TRUE(outcome.failures.empty()) << listing(outcome.failures);
    std::cout << outcome.checks << " calls checked\n";
  }
}

INSTANTIATE_TEST_SUITE_P(Laws, Meta, every_op(), name_of_op);
INSTANTIATE_TEST_SUITE_P(Laws, Known, every_op(), name_of_op);
INSTANTIATE_TEST_SUITE_P(Laws, Gradient, every_op(), name_of_op);
INSTANTIATE_TEST_SUITE_P(Laws, SecondOrder, every_op(), name_of_op);
INSTANTIATE_TEST_SUITE_P(Laws, Reference, every_op(), name_of_op);
INSTANTIATE_TEST_SUITE_P(Laws, Layout, every_op(), name_of_op);
INSTANTIATE_TEST_SUITE_P(Laws, Errors, every_op(), name_of_op);
INSTANTIATE_TEST_SUITE_P(Laws, Sharding, every_op(), name_of_op);
INSTANTIATE_TEST_SUITE_P(Laws, Linearity, every_op(), name_of_op);
INSTANTIATE_TEST_SUITE_P(Laws, Slices, every_op(), name_of_op);
INSTANTIATE_TEST_SUITE_P(Laws, Samples, every_op(), name_of_op);
INSTANTIATE_TEST_SUITE_P(Laws, Determinism, every_op(), name_of_op);
INSTANTIATE_TEST_SUITE_P(Laws, Cuda, every_op(), name_of_op);
INSTANTIATE_TEST_SUITE_P(Laws, Distributed, every_op(), name_of_op);

TEST(LawsTest, WaiversNameOpsAndLaws) {
  for (const Waiver& w : kWaivers) {
    EXPECT_TRUE(std::ranges::any_of(every_row(), [&](const OpRow* r) { return r->name == w.op; }))
        << w.op;
    EXPECT_TRUE(std::ranges::any_of(laws(), [&](const Law& l) { return l.name == w.law; }))
        << w.law;
    EXPECT_FALSE(w.reason.empty()) << w.op << ' ' << w.law;
  }
}

TEST(LawsTest, Summary) {
  const Session session({.threads = 1});  // the determinism law sets its own
  int64_t instances = 0, checks = 0, failures = 0, opt_outs = 0;
  for (const OpRow* row : every_row()) {
    const Subject s = subject_of(*row);
    for (const Law& law : laws()) {
      const Outcome o = law.judge(s);
      instances += o.checks > 0;
      checks += o.checks;
      failures += static_cast<int64_t>(o.failures.size());
    }
    opt_outs +=
        !row->not_differentiable.empty() + !row->not_shardable.empty() + !row->not_on_cuda.empty();
  }
  std::cout << "laws: " << every_row().size() << " ops, " << instances << " instances, " << checks
            << " checks, " << failures << " failures, " << kWaivers.size() << " waivers, "
            << opt_outs << " opt-outs\n";
}

}  // namespace
}  // namespace tessera::laws
