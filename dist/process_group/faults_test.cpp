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

// Rank 0 waits for rank 1, which waits for the late rank 2 and gives up first: also while rank 1
// deals with its error, rank 0 learns who is late.
TEST(Faults, WhoTimesOutLaterNamesTheSameRank) {
  using namespace std::chrono_literals;
  std::string texts[2];
  const auto on_rank = [&](World& w) {
    std::vector<Ref<ProcessGroup>> pairs;
    for (const int first : {0, 1}) {
      const std::array<int, 2> members{first, first + 1};
      const bool in = w.rank() == first || w.rank() == first + 1;
      pairs.push_back(in ? w.group().subgroup(members, concat("pair", first)) : nullptr);
    }
    w.group().barrier()->wait();
    if (w.rank() == 2) return std::this_thread::sleep_for(1500ms);
    w.group().set_timeout(w.rank() == 1 ? 300ms : 600ms);
    const Tensor x = empty({1}, DType::f32);
    *x.data<float>() = 0;
    try {
      pairs[w.rank() == 1]->all_reduce(x)->wait();
    } catch (const CollectiveTimeout& e) {
      texts[w.rank()] = e.what();
      if (w.rank() == 1) std::this_thread::sleep_for(600ms);
      throw;
    }
  };
  WorldOptions options;
  options.flight_folder = testing::TempDir();
  EXPECT_THROW(run_threads(3, on_rank, options, PayloadMode::direct), CollectiveTimeout);
  EXPECT_NE(texts[1].find("rank 2 never arrived"), std::string::npos) << texts[1];
  EXPECT_NE(texts[0].find("rank 1 itself waits, held up by rank 2"), std::string::npos) << texts[0];
}

}  // namespace
}  // namespace tessera
