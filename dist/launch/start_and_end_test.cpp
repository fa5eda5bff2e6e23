// SPDX-License-Identifier: Apache-2.0
// MPI waits for all ranks at its start and at its end, by itself for ever. This program starts
// itself under mpirun as a world of three, of which rank 1 does not come, is stopped on the way, or
// stays behind at the end: rank 0 ends by its deadline, with an error that says so. Its deadline is
// short and begins when the others are where they shall be, so that a busy machine changes nothing.
#include "tessera/core/error.h"
#include "tessera/dist/launch/launched_process_impl.h"
#include "tessera/tests/support/process.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>
#include <unistd.h>

namespace tessera {
namespace test {

// The process of a rank, once it has left its file in the launcher's folder.
RankPlace place_of(const Launch& launch, int rank) {
  const std::string path = concat(launch.host_folder, "/tessera.rank.", rank);
  RankPlace place;
  while (!(std::ifstream(path) >> rank >> place.pid >> place.started))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return place;
}
void wait_until_stopped(const RankPlace& place) {
  while (process_state(place.pid, place.started) != ProcessState::stopped)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// The program as one rank: `--start-rank <what happens to rank 1>`.
int start_rank(const std::string& what) {
  using std::chrono::milliseconds;
  constexpr milliseconds kShort(500), kWorld(2000), kLong(60'000);
  end_with_parent();
  const Launch launch = detect_launch();
  const bool zero = launch.rank == 0, one = launch.rank == 1;
  const auto stop_in = [&](std::string_view place) {
    if (one && what == place) ::raise(SIGSTOP);
    if (zero && what == place) wait_until_stopped(place_of(launch, 1));
  };
  milliseconds start = kLong;
  if (one && what == "ends") return 0;
  if (one && what == "stopped before") ::raise(SIGSTOP);
  if (zero && (what == "ends" || what == "stopped before" || what == "stopped within")) {
    start = kShort;
    (void)place_of(launch, 2);
    if (what == "stopped within") {
      const RankPlace place = place_of(launch, 1);
      ::kill(static_cast<pid_t>(place.pid), SIGSTOP);
      wait_until_stopped(place);
    }
  }
  try {
    LaunchedProcess process(launch, start);
    const auto meet = [&](World& world) {
      world.group().barrier()->wait();
      stop_in("stopped in its world");
    };
    process.run(launch.size, meet, {.threads = 1, .init_timeout = zero ? kWorld : kLong});
    stop_in("stopped at the end");
    process.finish(zero ? kShort : kLong);
  } catch (const Error& e) {
    std::cerr << concat(e.kind(), ' ', e.what(), '\n');
    return 1;
  }
  return 0;
}

}  // namespace test

namespace {

struct Fault {
  const char *what, *error;
};
constexpr std::array<Fault, 5> kFaults{
    {{"ends",
      "LaunchError [mpi] MPI_Init, which waits for all ranks, has not ended by init_timeout "
      "(--comm.init_timeout_seconds): here: rank 0, rank 2; not here: rank 1; start"},
     {"stopped before", ": here: rank 0, rank 2; not here: rank 1; start"},
     {"stopped within", ": here: rank 0, rank 1 (stopped), rank 2; not here: none; start"},
     {"stopped in its world",
      "rank 0 has ended, and others have not within init_timeout (2000 ms): rank 1 (stopped)"},
     {"stopped at the end",
      "rank 0 has ended, and MPI_Finalize, which waits for all ranks, has not ended within "
      "init_timeout (500 ms): rank 1 (stopped)"}}};

void check(const Fault& fault) {
  const std::string log = testing::TempDir() + concat("start.", ::getpid(), '.', fault.what);
  const std::string command = concat("timeout -s KILL 100 ./dev mpirun -n 3 '", test::own_program(),
                                     "' --start-rank '", fault.what, "' >'", log, "' 2>&1");
  const int status = std::system(command.c_str());
  std::stringstream text;
  text << std::ifstream(log).rdbuf();
  std::filesystem::remove(log);
  EXPECT_EQ(WEXITSTATUS(status), 1) << fault.what << '\n' << text.str();
  EXPECT_NE(text.str().find(fault.error), std::string::npos) << fault.what << '\n' << text.str();
}

TEST(StartAndEnd, OfMpiHaveDeadlines) {
  if (test::ranks_launcher() || !test::has_mpirun()) return;
  std::atomic<size_t> next{0};
  std::vector<std::thread> workers;  // worlds mostly wait, so some run at once
  for (int i = 0; i < 3; ++i) {
    workers.emplace_back([&] {
      for (size_t j = next++; j < kFaults.size(); j = next++) check(kFaults[j]);
    });
  }
  for (std::thread& worker : workers) worker.join();
}

}  // namespace
}  // namespace tessera
