// SPDX-License-Identifier: Apache-2.0
// Ranks of a launched program run the same tests in lockstep. If a rank skips a test since its
// fixture has failed, all ranks end at once and say why. This program starts itself as two such
// ranks.
#include "tessera/tests/support/launched_main.h"
#include "tessera/tests/support/process.h"

#include <filesystem>
#include <fstream>

namespace tessera {
namespace test {
namespace {

class FailingFixture : public testing::Test {
  void SetUp() override {
    const char* const rank = std::getenv("RANK");
    if (rank && std::string(rank) == "1") FAIL() << "the fixture of rank 1";
  }
  void TestBody() override {
    on_ranks(2, [](World& w) { w.group().barrier()->wait(); });
  }
};

}  // namespace

// Only the two ranks have these tests.
void register_failing_fixture() {
  for (const char* name : {"First", "Second"})
    testing::RegisterTest("FailingFixture", name, nullptr, nullptr, __FILE__, __LINE__,
                          []() -> testing::Test* { return new FailingFixture; });
}

}  // namespace test

namespace {

TEST(LaunchedTests, ARankWhoseFixtureFailedEndsAllWithTheReason) {
  if (test::ranks_launcher()) GTEST_SKIP() << "ranks are a launcher's already";
  const std::string log = concat(testing::TempDir(), "launched_tests.", getpid());
  auto ranks = test::start_ranks(
      2, test::Meeting::rendezvous,
      {test::own_program(), "--failing-fixture", "--gtest_filter=FailingFixture.*"}, {}, log);
  for (test::Process& rank : ranks) EXPECT_EQ(rank.wait(), 1);
  std::ifstream file(log);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  for (const char* part :
       {"rank 0 ends: it is at test FailingFixture.First, rank 1 at the end of all tests: a test "
        "failed on one of them outside of its ranks",
        "rank 1: FailingFixture.First: ", "the fixture of rank 1"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  std::filesystem::remove(log);
}

}  // namespace
}  // namespace tessera
