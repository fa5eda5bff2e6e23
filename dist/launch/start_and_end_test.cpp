// SPDX-License-Identifier: Apache-2.0
// MPI waits for all ranks at its start and at its end, by itself for ever. This program starts
// itself under mpirun as a world of three, of which rank 1 does not come, is stopped on the way, or
// stays behind at the end: the others end by their deadline, with an error that says so.
#include "tessera/core/error.h"
#include "tessera/dist/launch/launched_process_impl.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

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

// The program as one rank: `--start-rank <what happens to rank 1>`.
int start_rank(const std::string& what) {
  constexpr auto kDeadline = std::chrono::seconds(5);
  const Launch launch = detect_launch();
  const auto stop_in = [&](std::string_view place) {
    if (launch.rank == 1 && what == place) ::raise(SIGSTOP);
  };
  if (launch.rank == 1 && what == "ends") return 0;
  stop_in("stopped before");
  if (launch.rank == 2 && what == "stopped within") {
    int64_t rank = 0, pid = 0;
    while (!(std::ifstream(launch.host_folder + "/tessera.rank.1") >> rank >> pid))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ::kill(static_cast<pid_t>(pid), SIGSTOP);
  }
  const WorldOptions options{.threads = 1, .init_timeout = kDeadline};
  try {
    LaunchedProcess process(launch, kDeadline);
    const auto meet = [&](World& world) {
      world.group().barrier()->wait();
      stop_in("stopped in its world");
    };
    process.run(launch.size, meet, options);
    stop_in("stopped at the end");
    process.finish(kDeadline);
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
      " has ended, and others have not within init_timeout (5000 ms): rank 1 (stopped)"},
     {"stopped at the end",
      " has ended, and MPI_Finalize, which waits for all ranks, has not ended within init_timeout "
      "(5000 ms): rank"}}};

TEST(StartAndEnd, OfMpiHaveDeadlines) {
  if (test::ranks_launcher() || std::system("command -v mpirun >/dev/null 2>&1") != 0) return;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::thread> worlds;  // they mostly wait
  for (const Fault& fault : kFaults) {
    worlds.emplace_back([&] {
      const std::string log = testing::TempDir() + concat("start.", ::getpid(), '.', fault.what);
      const auto start = std::chrono::steady_clock::now();
      const int status = std::system(concat("timeout -s KILL 50 ./dev mpirun -n 3 '", program,
                                            "' --start-rank '", fault.what, "' >'", log, "' 2>&1")
                                         .c_str());
      const auto took = std::chrono::steady_clock::now() - start;
      std::stringstream text;
      text << std::ifstream(log).rdbuf();
      std::filesystem::remove(log);
      EXPECT_EQ(WEXITSTATUS(status), 1) << fault.what << '\n' << text.str();
      EXPECT_LT(took, std::chrono::seconds(30)) << fault.what;
      EXPECT_NE(text.str().find(fault.error), std::string::npos) << fault.what << '\n'
                                                                 << text.str();
    });
  }
  for (std::thread& world : worlds) world.join();
}

}  // namespace
}  // namespace tessera
