// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run/checkpointing.h"

#include "tessera/dist/launch/run.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/train/ranks/ranks.h"

namespace tessera::train {
namespace {

using Due = Checkpointing::Due;

class CheckpointingTest : public TinyRunTest {
 protected:
  // Calls use(checkpointing, folder) for a run of 20 steps on two ranks.
  template <class F> void with(const Words& more, F&& use) const {
    const Config c = config("run", joined({"--ranks", "2"}, more));
    const auto on_rank = [&](World&) {
      const Print print = [](const std::string&) {};
      const RunFacts run = agreed_facts(c, true, print);
      const RunFolder folder(run.config, print);
      RunParts parts = make_run_parts(run.config, run.device, run.tokenizer);
      const LossHistory history;
      Checkpointing checkpoints(run, parts, folder, history, print);
      use(checkpoints, folder.checkpoints());
    };
    run_ranks(2, on_rank, world_options(c));
  }
  // As rank 0 sees them, which alone removes any.
  static void expect_steps(const CheckpointFolder& folder, const std::vector<int64_t>& steps) {
    if (own_rank() == 0) {
      EXPECT_EQ(folder.steps(), steps);
    }
  }
};

TEST_F(CheckpointingTest, SavesAreDueAtTheFirstStepEachIntervalAndTheLast) {
  const Words often{"--checkpoint.interval", "7", "--checkpoint.enable_first_step_checkpoint",
                    "true"};
  with(often, [](Checkpointing& checkpoints, const CheckpointFolder&) {
    std::string due;
    for (int64_t step = 1; step <= 20; ++step) {
      const Due d = checkpoints.due(step);
      if (d != Due::nothing) due += concat(step, d == Due::last ? " last " : " ");
    }
    EXPECT_EQ(due, "1 7 14 20 last ");
  });
  with({"--checkpoint.enable", "false", "--overwrite"},
       [](Checkpointing& checkpoints, const CheckpointFolder&) {
         EXPECT_EQ(checkpoints.due(20), Due::nothing);
       });
}

TEST_F(CheckpointingTest, ASaveInFlightIsCommittedBeforeTheNextOne) {
  const Words async{"--checkpoint.async_mode", "async", "--checkpoint.keep_latest_k", "2"};
  with(async, [](Checkpointing& checkpoints, const CheckpointFolder& folder) {
    checkpoints.follow(Due::save, {.step = 4});
    checkpoints.follow(Due::save, {.step = 5});
    expect_steps(folder, {4});
    checkpoints.follow(Due::last, {.step = 20});
    expect_steps(folder, {5, 20});
    EXPECT_FALSE(stops(checkpoints.stopped_by()));
  });
}

TEST_F(CheckpointingTest, AStopIsSaved) {
  with({}, [](Checkpointing& checkpoints, const CheckpointFolder& folder) {
    checkpoints.follow(Due::terminate, {.step = 3});
    EXPECT_EQ(checkpoints.stopped_by(), SignalRequest::terminate);
    expect_steps(folder, {3});
  });
}

}  // namespace
}  // namespace tessera::train
