// SPDX-License-Identifier: Apache-2.0
// Saves in the background, and saves that fail: training goes on, and what is saved is what a run
// that waits saves.
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/tests/support/free_port.h"
#include "tessera/tests/support/io_faults.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/run/trainer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using test::IoFault;
using test::IoFaults;

using Ranks = std::vector<size_t>;

class AsyncSaveTest : public TinyRunTest {
 protected:
  static constexpr int kRanks = 2;
  // Two rows per step; `at_step(n)` is called on each rank before step n.
  void train_run(const Config& c, const std::function<void(int64_t)>& at_step) {
    const auto source = [&](int64_t first, int64_t count) -> Batch {
      at_step(first / (2 * kRanks) + 1);
      return {full({count, 16}, static_cast<double>(first % 7), DType::i64),
              full({count, 16}, static_cast<double>(first % 5), DType::i64)};
    };
    run_ranks(kRanks, [&](World&) {
      Trainer trainer(
          c, [&](const std::string& line) { printed_ += line + '\n'; }, nullptr, source);
      trainer.run();
    });
  }
  // The processes of one run in dump folder a, whose outputs go to log0, log1, ...
  [[nodiscard]] std::vector<std::unique_ptr<Child>> processes(
      int ranks, const Words& words, const std::function<Words(int)>& environment) const {
    const std::string port = concat("MASTER_PORT=", test::free_port());
    std::vector<std::unique_ptr<Child>> all;
    for (int rank = 0; rank < ranks; ++rank) {
      const Words own{concat("RANK=", rank), concat("WORLD_SIZE=", ranks), "MASTER_ADDR=127.0.0.1",
                      port};
      all.push_back(
          std::make_unique<Child>(train("a", joined({"--training.local_batch_size", "1"}, words)),
                                  path(concat("log", rank)), joined(own, environment(rank))));
    }
    return all;
  }
  [[nodiscard]] std::string file(const std::string& dump, int64_t step, int rank) const {
    return io::read_file(
        path(concat(dump, "/checkpoint/step-", step, "/rank-0000", rank, ".safetensors")));
  }
  std::string printed_;
};

TEST_F(AsyncSaveTest, StepsGoOnWhileASaveIsHeld) {
  const Words every4{"--training.steps",           "12", "--checkpoint.interval", "4",
                     "--checkpoint.keep_latest_k", "0"};
  train_run(config("waits", every4), [](int64_t) {});
  IoFaults& faults = IoFaults::get();
  faults.held = 0;
  faults.hold = true;
  std::atomic<bool> seen{false};
  // After step 4 a save begins; it may end after step 6.
  train_run(config("goes_on", joined(every4, {"--checkpoint.async_mode", "async"})),
            [&](int64_t step) {
              if (step != 7 || seen.exchange(true)) return;
              EXPECT_TRUE(fs::exists(path("goes_on/checkpoint/step-4.partial")));
              EXPECT_FALSE(fs::exists(path("goes_on/checkpoint/step-4")));
              while (faults.held < kRanks)  // every rank's write has come that far
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
              faults.hold = false;
            });
  EXPECT_TRUE(seen);
  for (const int64_t step : {4, 8, 12}) {
    for (int rank = 0; rank < kRanks; ++rank)
      EXPECT_EQ(file("goes_on", step, rank), file("waits", step, rank)) << step;
  }
  for (const auto& entry : fs::directory_iterator(path("goes_on/checkpoint")))
    EXPECT_NE(entry.path().extension(), ".partial");
}

TEST_F(AsyncSaveTest, ADiskThatIsFullForAWhileEndsNoRun) {
  for (const char* mode : {"disabled", "async"}) {
    const std::string dump = concat("full_", mode);
    IoFaults& faults = IoFaults::get();
    printed_.clear();
    std::atomic<bool> full{false}, room{false};
    train_run(config(dump, {"--training.steps", "12", "--checkpoint.interval", "3",
                            "--checkpoint.async_mode", mode, "--metrics.log_freq", "1000"}),
              [&](int64_t step) {
                if (step == 6 && !full.exchange(true)) faults.arm(IoFault::no_space, 0, true);
                if (step == 9 && !room.exchange(true)) faults.disarm();
              });
    TESSERA_EXPECT_HOLDS(printed_, "warning: step 6 was not saved, and training goes on: ");
    std::vector<int64_t> steps = CheckpointFolder(path(dump + "/checkpoint")).steps();
    std::erase(steps, 3);  // in the background it may have met the full disk too
    EXPECT_EQ(steps, (std::vector<int64_t>{9, 12}));
  }
}

// Killed at one system call after the other of a save of four ranks.
TEST_F(AsyncSaveTest, AKillAtAnyCallLeavesWholeSteps) {
  const bool all = test::long_form();
  const CheckpointFolder folder(path("a/checkpoint"));
  int kills = 0;
  for (int64_t at = all ? 0 : 5; kills < (all ? 250 : 8); at += all ? 1 : 29) {
    SCOPED_TRACE(concat("killed at call ", at));
    fs::remove_all(path("a"));
    Child child(train("a", {"--training.steps", "6", "--checkpoint.interval", "1", "--ranks", "4",
                            "--checkpoint.keep_latest_k", "2", "--training.local_batch_size", "1",
                            "--checkpoint.async_mode", at % 2 == 0 ? "async" : "disabled"}),
                path("log"), {concat("TESSERA_TEST_KILL_AT=", at)});
    const int status = child.wait();
    if (status == 0) break;  // the run has no more calls
    ASSERT_EQ(status, -SIGKILL) << io::read_file(path("log"));
    ++kills;
    const Session session;
    for (const int64_t step : folder.steps()) CheckpointReader(folder.folder_of(step)).verify();
    folder.recover();
    for (const auto& entry : fs::directory_iterator(folder.path()))
      EXPECT_TRUE(step_of(entry.path().filename().string()) || entry.path().filename() == ".lock")
          << entry.path();
  }
  EXPECT_GE(kills, 4);
  std::cout << kills << " kills\n";
}

// Four processes, one of which is killed at a call of a save: the others end with an error, and
// what is saved is whole.
TEST_F(AsyncSaveTest, AKilledProcessLeavesWholeSteps) {
  const bool all = test::long_form();
  const CheckpointFolder folder(path("a/checkpoint"));
  for (int i = 0; i < (all ? 60 : 4); ++i) {
    // Rank 0 makes more calls than the others, which only write their files.
    const int victim = i % 4;
    const int call = i / 4 + (victim == 0 ? 2 * i : 0);
    SCOPED_TRACE(concat("rank ", victim, " killed at call ", call));
    fs::remove_all(path("a"));
    const auto ranks = processes(
        4,
        {"--training.steps", "1000", "--checkpoint.interval", "1", "--checkpoint.keep_latest_k",
         "2", "--checkpoint.async_mode", i % 2 == 0 ? "async" : "disabled"},
        [&](int rank) {
          return rank == victim ? Words{concat("TESSERA_TEST_KILL_AT=", call)} : Words{};
        });
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(ranks[static_cast<size_t>(rank)]->wait(), rank == victim ? -SIGKILL : 1)
          << io::read_file(path(concat("log", rank)));
    }
    const Session session;
    for (const int64_t step : folder.steps()) CheckpointReader(folder.folder_of(step)).verify();
  }
}

// Signals reach one of two processes or both, while the save after step 1 is held in both: it is
// finished, and then the step of the signal is saved.
TEST_F(AsyncSaveTest, SignalsAreServedAfterASaveThatIsHeld) {
  const CheckpointFolder folder(path("a/checkpoint"));
  for (const int signal : {SIGUSR1, SIGTERM}) {
    for (const Ranks& receivers : {Ranks{0}, {1}, {0, 1}}) {
      SCOPED_TRACE(concat("signal ", signal, " to ", receivers.size(), ", first ", receivers[0]));
      fs::remove_all(path("a"));
      const std::string hold = put("hold", "");
      const auto ranks = processes(
          2,
          {"--training.steps", "1000000", "--checkpoint.interval", "1000000",
           "--checkpoint.enable_first_step_checkpoint", "true", "--checkpoint.async_mode", "async"},
          [&](int) { return Words{concat("TESSERA_TEST_HOLD=", hold)}; });
      const auto wait_for = [&](const std::function<bool()>& done) {
        ASSERT_TRUE(ranks[0]->wait_for(done)) << io::read_file(path("log0"));
      };
      wait_for([&] {  // later steps are done
        const std::string metrics = path("a/metrics.jsonl");
        return fs::exists(metrics) && std::ranges::count(io::read_file(metrics), '\n') >= 3;
      });
      EXPECT_TRUE(fs::exists(path("a/checkpoint/step-1.partial")));
      for (const size_t rank : receivers) ranks[rank]->signal(signal);
      fs::remove(hold);
      if (signal == SIGUSR1) {
        wait_for([&] { return folder.steps().size() == 2; });
        ranks[1]->signal(SIGTERM);
      }
      for (size_t rank = 0; rank < 2; ++rank)
        EXPECT_EQ(ranks[rank]->wait(), 0) << io::read_file(path(concat("log", rank)));
      const std::vector<int64_t> steps = folder.steps();
      ASSERT_EQ(steps.size(), signal == SIGUSR1 ? 3u : 2u);
      EXPECT_EQ(steps[0], 1);
      TESSERA_EXPECT_HOLDS(io::read_file(path("log0")),
                           concat("stopped by SIGTERM after step ", steps.back()));
      const Session session;
      for (const int64_t step : steps) CheckpointReader(folder.folder_of(step)).verify();
      for (const auto& entry : fs::directory_iterator(folder.path()))
        EXPECT_NE(entry.path().extension(), ".partial");
    }
  }
}

}  // namespace
}  // namespace tessera::train
