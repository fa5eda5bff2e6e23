// SPDX-License-Identifier: Apache-2.0
// Attention on each of its paths. With a cuDNN the table's path is the one that runs: what cuDNN
// refuses of it fails here.
#include "tessera/core/process.h"
#include "tessera/tests/laws/arguments.h"
#include "tessera/tests/support/attention_cases.h"

#include <gtest/gtest.h>

namespace tessera::test {
namespace {

// What a path may be wrong by. cuDNN's delta is the sum of dout o, of an o that is rounded; the
// tensor-core kernels sum p dp, so that saturated rows have gradients near 0 as in f64.
double tolerance_of(const AttentionTest& a, AttentionPath path) {
  if (path == AttentionPath::scalar) return a.dtype == DType::f32 ? 2e-6 : 1e-2;
  return a.dtype == DType::f16 ? 3e-3 : 2e-2;
}

class AttentionPathsCuda : public testing::TestWithParam<AttentionTest> {
 protected:
  void SetUp() override {
    if (!Process::get().cuda_available()) GTEST_SKIP() << "no GPU";
  }
};

TEST_P(AttentionPathsCuda, IsRight) {
  const AttentionTest& a = GetParam();
  const AttentionChoice choice = choose_attention(case_of(a), has_cudnn());
  if (has_cudnn()) {
    EXPECT_EQ(choice.path, a.with_cudnn) << choice.why_not_cudnn;
  }
  for (const bool deterministic : {false, true}) {
    const Session session({.threads = 1, .deterministic = deterministic});
    const AttentionErrors e = attention_errors(a, cuda(), laws::test_seed());
    const double most = tolerance_of(a, choice.path);
    const bool right = e.worst() <= most;  // not if it is NaN
    EXPECT_TRUE(right) << a.name << " by " << name_of(choice.path)
                       << (deterministic ? ", deterministic" : "") << ": errors of o " << e.o
                       << ", lse " << e.lse << ", dq " << e.dq << ", dk " << e.dk << ", dv " << e.dv
                       << ", expected at most " << most;
    if (deterministic) {
      const AttentionErrors again = attention_errors(a, cuda(), laws::test_seed());
      EXPECT_TRUE(again.dq == e.dq && again.dk == e.dk && again.dv == e.dv)
          << "gradients differ from one run to the next";
    }
    EXPECT_EQ(noted_cudnn_refusals(), std::vector<std::string>());
  }
}
INSTANTIATE_TEST_SUITE_P(, AttentionPathsCuda, testing::ValuesIn(attention_tests()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tessera::test
