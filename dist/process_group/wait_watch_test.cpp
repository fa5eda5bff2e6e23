// SPDX-License-Identifier: Apache-2.0
// The watchdog of waits: what it gives up, what it writes, and what it leaves alone.
#include "tessera/core/error.h"
#include "tessera/dist/process_group/wait_watch_impl.h"

#include <gtest/gtest.h>

#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// A wait that looks whether it was given up; the error.
std::string wait_of(WaitWatch& watch, Clock::time_point deadline, Clock::duration longest) {
  const WaitWatch::Wait wait(watch, "all_reduce", 7, deadline);
  const auto end = Clock::now() + longest;
  try {
    while (Clock::now() < end) {
      wait.check();
      std::this_thread::sleep_for(1ms);
    }
  } catch (const CollectiveTimeout& e) {
    return e.what();
  }
  return "";
}

TEST(WaitWatch, AWaitBeyondItsDeadlineEndsWithTheStacks) {
  WaitWatch watch(3);
  watch.start(false, 100ms);
  testing::internal::CaptureStderr();
  const std::string error = wait_of(watch, Clock::now(), 20s);
  const std::string seen = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(error.starts_with("[all_reduce #7] rank 3 gave up: this wait did not end")) << error;
  EXPECT_NE(seen.find("rank 3 still waits in all_reduce #7, 0.1 s after its deadline"),
            std::string::npos)
      << seen;
  EXPECT_NE(seen.find("thread "), std::string::npos) << seen;
  EXPECT_NE(seen.find("[0x"), std::string::npos) << "no address of a stack: " << seen;
}

TEST(WaitWatch, AWaitWithinItsDeadlineIsLeftAlone) {
  WaitWatch watch(0);
  watch.start(false, 60ms);
  EXPECT_EQ(wait_of(watch, Clock::now() + 1min, 300ms), "");
  EXPECT_EQ(wait_of(watch, Clock::now() + 100ms, 100ms), "");
}

TEST(WaitWatch, AProgramMayEnd) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto waits = [] {
    WaitWatch watch(1);
    watch.start(true, 100ms);
    Mutex mutex;
    const std::lock_guard guard(mutex);
    const WaitWatch::Wait wait(watch, "a call that needs the rank's lock", 0, Clock::now());
    pause();
  };
  EXPECT_EXIT(waits(), testing::ExitedWithCode(1), "error: \\[wait\\] rank 1 ends");
}

// As by Ctrl-Z: the time counts in which the watchdog itself ran.
TEST(WaitWatch, AStoppedProcessLivesOn) {
  const pid_t child = fork();
  if (child == 0) {
    WaitWatch watch(0);
    watch.start(true, 1000ms);
    const WaitWatch::Wait wait(watch, "barrier", 1, Clock::now() + 50ms);
    std::this_thread::sleep_for(50ms);
    raise(SIGSTOP);
    std::this_thread::sleep_for(150ms);
    _exit(7);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  std::this_thread::sleep_for(1300ms);
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

}  // namespace
}  // namespace tessera
