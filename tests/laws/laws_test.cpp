// SPDX-License-Identifier: Apache-2.0
// Each law of each op as one test: Laws/Gradient.Holds/softmax.
#include "tessera/tests/laws/laws.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/process.h"
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
    const Law& law = *std::ranges::find(laws(), name, &Law::name);
    Outcome outcome = law.judge(subject_of(row));
    if (outcome.failures.empty() && outcome.checks == 0 && law.concerns(row)) {
      outcome.failures.push_back(
          {std::string(row.name), "all samples", "the law found nothing to check"});
    }
    if (const Waiver* w = waiver(row.name, name)) {
      EXPECT_FALSE(outcome.failures.empty())
          << "the law is kept: delete its waiver (" << w->reason << ')';
    } else {
      EXPECT_TRUE(outcome.failures.empty()) << listing(outcome.failures);
    }
  }
};

std::string test_name(const testing::TestParamInfo<const OpRow*>& info) {
  std::string text(info.param->name);
  std::ranges::replace_if(
      text, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return text;
}

class Meta : public OfEveryOp {};
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

TEST_P(Meta, Holds) { holds("Meta"); }
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
}

const auto kRows = testing::ValuesIn(kernel_rows().begin(), kernel_rows().end());
INSTANTIATE_TEST_SUITE_P(Laws, Meta, kRows, test_name);
INSTANTIATE_TEST_SUITE_P(Laws, Gradient, kRows, test_name);
INSTANTIATE_TEST_SUITE_P(Laws, SecondOrder, kRows, test_name);
INSTANTIATE_TEST_SUITE_P(Laws, Reference, kRows, test_name);
INSTANTIATE_TEST_SUITE_P(Laws, Layout, kRows, test_name);
INSTANTIATE_TEST_SUITE_P(Laws, Errors, kRows, test_name);
INSTANTIATE_TEST_SUITE_P(Laws, Sharding, kRows, test_name);
INSTANTIATE_TEST_SUITE_P(Laws, Linearity, kRows, test_name);
INSTANTIATE_TEST_SUITE_P(Laws, Slices, kRows, test_name);
INSTANTIATE_TEST_SUITE_P(Laws, Samples, kRows, test_name);
INSTANTIATE_TEST_SUITE_P(Laws, Determinism, kRows, test_name);
INSTANTIATE_TEST_SUITE_P(Laws, Cuda, kRows, test_name);

TEST(LawsTest, WaiversNameOpsAndLaws) {
  for (const Waiver& w : kWaivers) {
    EXPECT_TRUE(std::ranges::any_of(kernel_rows(), [&](const OpRow* r) { return r->name == w.op; }))
        << w.op;
    EXPECT_TRUE(std::ranges::any_of(laws(), [&](const Law& l) { return l.name == w.law; }))
        << w.law;
    EXPECT_FALSE(w.reason.empty()) << w.op << ' ' << w.law;
  }
}

TEST(LawsTest, Summary) {
  const Session session({.threads = 1});  // the determinism law sets its own
  int64_t instances = 0, checks = 0, failures = 0, opt_outs = 0;
  for (const OpRow* row : kernel_rows()) {
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
  std::cout << "laws: " << kernel_rows().size() << " ops, " << instances << " instances, " << checks
            << " checks, " << failures << " failures, " << kWaivers.size() << " waivers, "
            << opt_outs << " opt-outs\n";
}

}  // namespace
}  // namespace tessera::laws
