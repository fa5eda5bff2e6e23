// SPDX-License-Identifier: Apache-2.0
// main() of test programs whose tests run on_ranks: by itself ranks are threads; under mpirun, srun
// or torchrun all processes run the same tests in lockstep and ranks are the first n processes.
// Only process 0 prints everything; a failure on any process fails the run on all.
#pragma once

#include "tessera/dist/launch/launched_process_impl.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

namespace tessera::test {

/// Prints failures alone, with the rank in front.
class QuietPrinter : public testing::EmptyTestEventListener {
 public:
  explicit QuietPrinter(int rank) : rank_(rank) {}
  void OnTestStart(const testing::TestInfo& test) override {
    test_ = concat(test.test_suite_name(), '.', test.name());
  }
  // GoogleTest holds its lock meanwhile: what asks it for the current test waits for ever.
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::cerr << concat("rank ", rank_, ": ", test_, ": ",
                        result.file_name() ? result.file_name() : "", ":", result.line_number(),
                        ": ", result.message(), "\n");
  }

 private:
  int rank_;
  std::string test_;
};

/// Throws the error of that kind, as far as the tests tell kinds apart.
[[noreturn]] inline void throw_as(const std::string& kind, const std::string& text) {
  const auto as = [&]<class E>() {
    if (kind == E(text).kind()) throw E(text);
  };
  const auto one_of = [&]<class... E>() { (as.template operator()<E>(), ...); };
  one_of.template operator()<PeerFailed, CollectiveTimeout, CollectiveMismatch, LayoutError,
                             ShapeError, DTypeError, DeviceError, ValueError, UsageError,
                             LaunchError, DataError, IndexError, StorageError, AutogradError>();
  throw std::runtime_error(text);
}

/// Meets all other processes at the same test. Ends this process, saying why, if one is at another,
/// as after a failure in a fixture, or does not come: what follows could only wait for it.
inline void meet_at_this_test(LaunchedProcess& process) {
  constexpr auto kPatience = std::chrono::seconds(30);
  const auto end = [&](const std::string& why) {
    std::cerr << concat("rank ", process.rank(), " ends: ", why, "\n") << std::flush;
    std::_Exit(1);
  };
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string mine =
      test ? concat("test ", test->test_suite_name(), '.', test->name()) : "the end of all tests";
  try {
    const auto all = process.exchange(mine, kPatience);
    for (size_t r = 0; r < all.size(); ++r) {
      if (all[r] == mine) continue;
      end(concat("it is at ", mine, ", rank ", r, " at ", all[r],
                 ": a test failed on one of them outside of its ranks"));
    }
  } catch (const Error& e) {
    end(concat("at ", mine, ": ", e.what()));
  }
}

/// Runs fn on the first n processes, in a world of its own, and meets all others afterwards; an
/// error of one comes out on all. More ranks than there are processes are threads of process 0.
inline void run_on_processes(LaunchedProcess& process, int n, const RankFunction& fn,
                             const WorldOptions& options) {
  meet_at_this_test(process);
  std::string kind, text;
  try {
    if (n <= process.size()) process.run(n, fn, options);
    else if (process.rank() == 0) run_ranks(n, fn, options);
  } catch (const Error& e) {
    kind = e.kind();
    text = e.what();
  } catch (const std::exception& e) {
    kind = "std";
    text = e.what();
  }
  const std::string mine = kind.empty() ? "" : PackedWriter().text(kind).text(text).bytes();
  std::string first;  // of the rank that is not a mere victim, as run_ranks does
  bool victim = true;
  for (const std::string& theirs : process.exchange(mine, std::chrono::minutes(5))) {
    if (theirs.empty()) continue;
    const bool is_victim = PackedReader(theirs).text() == "PeerFailed";
    if (!first.empty() && (!victim || is_victim)) continue;
    first = theirs;
    victim = is_victim;
  }
  if (first.empty()) return;
  PackedReader in(first);
  kind = in.text();
  throw_as(kind, in.text());
}

inline int run_tests_launched(const Launch& launch) {
  LaunchedProcess process(launch, std::chrono::minutes(1));
  if (process.rank() == 0) {
    std::cerr << "world: " << process.text() << '\n';
  } else {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new QuietPrinter(process.rank()));
  }
  ranks_launcher() = [&](int n, const RankFunction& fn, const WorldOptions& options) {
    run_on_processes(process, n, fn, options);
  };
  const int result = RUN_ALL_TESTS();
  ranks_launcher() = nullptr;
  meet_at_this_test(process);
  int worst = result;
  const std::string mine = PackedWriter().put(result).text(BitLog::get().text()).bytes();
  const auto all = process.exchange(mine, std::chrono::minutes(5));
  for (size_t r = 0; r < all.size(); ++r) {
    PackedReader in(all[r]);
    worst = std::max(worst, in.get<int>());
    if (r > 0 && process.rank() == 0) BitLog::get().merge(in.text());
  }
  if (process.rank() == 0) {
    BitLog::get().write();
    if (worst != result) std::cout << "[  FAILED  ] on a process other than 0, see above\n";
  }
  return worst;
}

inline int launched_main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  try {
    const Launch launch = detect_launch();
    if (launch.launcher != Launcher::single) return run_tests_launched(launch);
  } catch (const Error& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
  const int result = RUN_ALL_TESTS();
  BitLog::get().write();
  return result;
}

}  // namespace tessera::test
