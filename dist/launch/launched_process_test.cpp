// SPDX-License-Identifier: Apache-2.0
// Worlds by run_launched, as far as one process can make them, and what is seen of other processes.
#include "tessera/dist/launch/run.h"
#include "tessera/dist/rendezvous/place_impl.h"
#include "tessera/tests/support/process.h"
#include "tessera/tests/support/ranks.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <spawn.h>
#include <sstream>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace tessera {
namespace {

// Rank 0 of a world of one, as torchrun would start it; any free port will do.
Launch alone() {
  Launch launch;
  launch.launcher = Launcher::torchrun;
  launch.master_address = "localhost";
  return launch;
}

// What run_launched says on stderr.
std::string printed(const Launch& launch, const std::function<void(World&)>& fn) {
  testing::internal::CaptureStderr();
  run_launched(launch, fn);
  return testing::internal::GetCapturedStderr();
}

TEST(LaunchedWorld, OfOneProcess) {
  int calls = 0;
  const std::string text = printed(alone(), [&](World& w) {
    ++calls;
    EXPECT_EQ(w.size(), 1);
    EXPECT_EQ(w.group().backend(), "shared");
    const Tensor x = from_values({1, 2, 3}, {3});
    w.group().all_reduce(x)->wait();
    EXPECT_EQ(x.values(), (std::vector<double>{1, 2, 3}));
    const auto again = w.group().split(0);
    again->barrier()->wait();
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(text.find("world: 1 rank by torchrun, 1 host, shared memory, "), 0u) << text;
}

TEST(LaunchedWorld, OfThreads) {
  Launch launch;
  launch.launcher = Launcher::threads;
  launch.size = 3;
  std::atomic<int> calls{0};
  const std::string text = printed(launch, [&](World& w) {
    EXPECT_EQ(w.group().backend(), "threads");
    ++calls;
  });
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(text.find("world: 3 ranks as threads, 1 host, "), 0u) << text;
}

TEST(LaunchedWorld, WithoutALauncherIsSilent) {
  EXPECT_EQ(printed(Launch{}, [](World& w) { EXPECT_EQ(w.size(), 1); }), "");
}

TEST(LaunchedWorld, ErrorsComeOut) {
  EXPECT_THROW(run_launched(alone(), [](World&) { fail<DataError>("here", "no data"); }),
               DataError);
}

// Rank 0 of two, to which rank 1 never comes; what it says on stderr.
std::string printed_alone_of_two(const std::string& bind_address, const std::string& token) {
  Launch launch = alone();
  launch.size = 2;
  launch.bind_address = bind_address;
  launch.token = token;
  WorldOptions options;
  options.init_timeout = std::chrono::milliseconds(20);
  testing::internal::CaptureStderr();
  EXPECT_THROW(run_launched(
                   launch, [](World&) { FAIL(); }, options),
               CollectiveTimeout);
  return testing::internal::GetCapturedStderr();
}

TEST(LaunchedWorld, WarnsOfAPortThatOthersReachWithoutASecret) {
  EXPECT_EQ(printed_alone_of_two("", ""), "") << "localhost";
  EXPECT_EQ(printed_alone_of_two("0.0.0.0", "random"), "");
  const std::string text = printed_alone_of_two("0.0.0.0", "");
  for (const char* part : {"warning: whoever reaches port", "can join", "TESSERA_JOB_TOKEN"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(LaunchedWorld, TheStartEndsAtItsDeadline) {
  Launch launch = alone();
  launch.rank = 1;
  launch.size = 2;
  launch.master_port = 1;  // nobody listens there
  WorldOptions options;
  options.init_timeout = std::chrono::milliseconds(20);
  EXPECT_THROW(run_launched(
                   launch, [](World&) { FAIL(); }, options),
               LaunchError);
}

TEST(LaunchedWorld, RefusesAnUnknownTransport) {
  const char* before = std::getenv("TESSERA_TRANSPORT");
  const std::string saved = before ? before : "";
  setenv("TESSERA_TRANSPORT", "pigeon", 1);
  try {
    run_launched(alone(), [](World&) {});
    ADD_FAILURE() << "accepted";
  } catch (const LaunchError& e) {
    EXPECT_NE(std::string(e.what()).find("TESSERA_TRANSPORT='pigeon'"), std::string::npos);
  }
  if (saved.empty()) unsetenv("TESSERA_TRANSPORT");
  else setenv("TESSERA_TRANSPORT", saved.c_str(), 1);
}

TEST(LaunchedWorld, RanksWhoseTransportDiffersAreTold) {
  if (test::ranks_launcher()) return;  // ranks are a launcher's already
  const std::string log = concat(testing::TempDir(), "transport.", getpid());
  const std::string command = concat("[ $RANK = 0 ] || export TESSERA_TRANSPORT=messages; exec '",
                                     test::own_program(), "' --gtest_filter=None");
  auto ranks = test::start_ranks(2, test::Meeting::rendezvous, {"sh", "-c", command},
                                 {"TESSERA_TRANSPORT=shared"}, log);
  for (test::Process& rank : ranks) EXPECT_EQ(rank.wait(), 1);
  std::stringstream text;
  text << std::ifstream(log).rdbuf();
  EXPECT_NE(text.str().find("[launch] TESSERA_TRANSPORT is not the same on all ranks: rank 1 "
                            "differs from rank 0\n"),
            std::string::npos)
      << text.str();
  std::filesystem::remove(log);
}

TEST(LaunchedWorld, LeavesNoNamedMemory) {
  const auto names = [] {
    size_t n = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
      n += entry.path().filename().string().starts_with("tessera");
    return n;
  };
  run_launched(alone(), [&](World&) { EXPECT_EQ(names(), 0u); });
}

TEST(ProcessState, RunningStoppedGone) {
  const RankPlace own = RankPlace::own();
  EXPECT_EQ(process_state(own.pid, own.started), ProcessState::running);
  EXPECT_EQ(process_state(own.pid, own.started + 1), ProcessState::gone) << "a later process";
  const char* const words[]{"sleep", "60", nullptr};
  pid_t child = -1;
  ASSERT_EQ(
      posix_spawnp(&child, "sleep", nullptr, nullptr, const_cast<char* const*>(words), environ), 0);
  const uint64_t started = RankPlace::of(child).started;
  const auto becomes = [&](ProcessState state) {
    for (int i = 0; i < 2000 && process_state(child, started) != state; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return process_state(child, started) == state;
  };
  EXPECT_TRUE(becomes(ProcessState::running));
  kill(child, SIGSTOP);
  EXPECT_TRUE(becomes(ProcessState::stopped));
  kill(child, SIGKILL);
  EXPECT_TRUE(becomes(ProcessState::gone)) << "a zombie is gone";
  waitpid(child, nullptr, 0);
}

TEST(RankPlace, TravelsAsBytes) {
  const RankPlace own = RankPlace::own(), same = RankPlace::unpack(own.pack());
  EXPECT_EQ(same.host, own.host);
  EXPECT_EQ(same.hostname, own.hostname);
  EXPECT_EQ(same.pid, own.pid);
  EXPECT_EQ(same.started, own.started);
}

}  // namespace
}  // namespace tessera
