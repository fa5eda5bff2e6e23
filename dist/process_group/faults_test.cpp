// SPDX-License-Identifier: Apache-2.0
// Faults among threads, with both ways to move payloads; see tests/support/faults.h.
#include "tessera/tests/support/faults.h"

#include "tessera/dist/launch/threads_impl.h"

#include <filesystem>
#include <iostream>
#include <map>

namespace tessera {
namespace {

using test::Injection;
using test::Outcome;

std::vector<Outcome> inject(const Injection& in, PayloadMode mode, const std::string& folder) {
  std::vector<Outcome> outcomes(test::kFaultRanks);
  WorldOptions options;
  options.threads = 1;
  options.init_timeout = in.deadline();
  options.flight_folder = folder;
  try {
    run_threads(
        test::kFaultRanks,
        [&](World& w) { test::take_part(w, in, outcomes[static_cast<size_t>(w.rank())]); }, options,
        mode);
  } catch (const Error&) {
  }
  return outcomes;
}

TEST(Faults, EveryCollectiveEveryMomentEveryFault) {
  const std::vector<Injection> once = test::every_injection(false);
  const auto folder =
      std::filesystem::temp_directory_path() / concat("tessera_faults_", once.size());
  const size_t total = 2 * once.size();
  std::atomic<size_t> at{0};
  std::mutex mutex;
  std::map<std::string, int> counts;
  std::vector<std::thread> workers;  // most injections sleep, so several run at once
  for (int i = 0; i < 12; ++i) {
    workers.emplace_back([&] {
      for (size_t j = at++; j < total; j = at++) {
        const Injection& in = once[j % once.size()];
        const bool direct = j < once.size();
        const auto outcomes =
            inject(in, direct ? PayloadMode::direct : PayloadMode::staged, folder.string());
        const std::lock_guard guard(mutex);
        test::check_outcomes(in, outcomes, direct ? "direct" : "staged");
        ++counts[concat(test::kFaultNames[static_cast<size_t>(in.fault)], ' ',
                        test::kMomentNames[static_cast<size_t>(in.moment)])];
      }
    });
  }
  for (auto& t : workers) t.join();
  std::filesystem::remove_all(folder);
  for (const auto& [what, count] : counts) std::cout << count << " x " << what << '\n';
  std::cout << total << " injections, " << total * (test::kFaultRanks - 1) << " survivors\n";
  EXPECT_GE(total, 200u);
}

}  // namespace
}  // namespace tessera
