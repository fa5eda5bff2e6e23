// SPDX-License-Identifier: Apache-2.0
// What builds that check locks find; here in every build.
#include "tessera/dist/lock/mutex_impl.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using Checked = BasicMutex<true>;

TEST(Mutex, OneThreadAfterAnother) {
  Checked mutex;
  int sum = 0;
  const auto add = [&] {
    for (int i = 0; i < 1000; ++i) {
      const std::lock_guard guard(mutex);
      ++sum;
    }
  };
  std::thread other(add);
  add();
  other.join();
  EXPECT_EQ(sum, 2000);
  EXPECT_EQ(detail::locks_held(), 0);
  const std::unique_lock guard(mutex, std::try_to_lock);
  EXPECT_TRUE(guard.owns_lock());
  EXPECT_EQ(detail::locks_held(), 1);
}

TEST(MutexDeathTest, FaultsEndTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto twice = [] {
    Checked mutex;
    mutex.lock();
    mutex.lock();
  };
  EXPECT_DEATH(twice(), "a thread takes a lock that it holds");
  const auto waits = [] {
    Checked mutex;
    const std::lock_guard guard(mutex);
    expect_no_lock<true>("a wait begins");
  };
  EXPECT_DEATH(waits(), "a wait begins, while it holds a lock of dist/");
  expect_no_lock<true>("nothing is held here");
}

}  // namespace
}  // namespace tessera
