// SPDX-License-Identifier: Apache-2.0
// The command checkpoint on the steps of a run of two ranks.
#include "tessera/models/llama3/llama3.h"
#include "tessera/nn/io/safetensors.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <fstream>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

class CheckpointCommandTest : public TinyRunTest {};

TEST_F(CheckpointCommandTest, StepsAreListedInspectedVerifiedAndMerged) {
  ASSERT_EQ(
      run(train("a", {"--training.steps", "4", "--checkpoint.interval", "2", "--ranks", "2"})), 0)
      << err_.str();
  EXPECT_EQ(run({"checkpoint", "ls", path("a")}), 0) << err_.str();
  const std::string step = path("a/checkpoint/step-4");
  TESSERA_EXPECT_HOLDS(out_.str(), path("a/checkpoint/step-2") + ": 2 files, ");
  TESSERA_EXPECT_HOLDS(out_.str(), "written on mesh(dp_replicate=1, dp_shard=2, cp=1, tp=1)");
  EXPECT_EQ(run({"checkpoint", "inspect", step}), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "step 4, optimizer steps 4, schedule step 4, rows of data 16, ");
  TESSERA_EXPECT_HOLDS(out_.str(), "  norm.weight  f32[32]  ");
  TESSERA_EXPECT_HOLDS(out_.str(), "norm.weight.exp_avg_sq");
  EXPECT_EQ(run({"checkpoint", "verify", path("a")}), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), step + ": whole, 2 files, ");

  const std::string file = path("whole.safetensors");
  EXPECT_EQ(run({"checkpoint", "merge", path("a"), "--output", file}), 0) << err_.str();
  {
    const Session session;
    const CheckpointReader reader(CheckpointFolder(path("a/checkpoint")).folder_of(4));
    const io::SafetensorsFile merged(file);
    EXPECT_EQ(merged.metadata().at("step"), "4");
    EXPECT_EQ(merged.entries().size(), reader.manifest().model.size());
    for (const auto& [name, entry] : reader.manifest().model)
      EXPECT_EQ(merged.read(name).values(), reader.read(name).values()) << name;
  }
  std::fstream bytes(step + "/rank-00001.safetensors",
                     std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekp(-1, std::ios::end).put('x').flush();
  EXPECT_EQ(run({"checkpoint", "verify", path("a")}), 1);
  TESSERA_EXPECT_HOLDS(out_.str(), path("a/checkpoint/step-2") + ": whole");
  TESSERA_EXPECT_HOLDS(out_.str(), "step-4 is incomplete or damaged: rank-00001.safetensors: ");
  EXPECT_EQ(run({"checkpoint", "verify", path("a"), "--step", "2"}), 0);
  fs::remove(step + "/manifest.json");
  EXPECT_EQ(run({"checkpoint", "ls", path("a")}), 0);
  TESSERA_EXPECT_HOLDS(out_.str(), step + ": incomplete: ");
}

TEST_F(CheckpointCommandTest, AStepOfAnotherProgramNeedsItsModelsConfiguration) {
  const auto save_step = [&](const auto&... config) {
    const Session session;
    llama3::Model model({.dim = 32,
                         .n_layers = 1,
                         .n_heads = 2,
                         .n_kv_heads = 2,
                         .ffn_dim = 32,
                         .vocab_size = 260,
                         .max_seq_len = 32});
    nn::initialize(model, 1);
    const optim::AdamW optimizer(nn::named_parameters(model));
    (void)save(model, optimizer, path("own"), {.step = 1}, config...);
    Config c;
    c.model = models::ModelConfig::of<llama3::Model>("llama3", "", model.config());
    c.training.seq_len = 32;
    return c.json();
  };
  const Words generate{"generate", "--checkpoint", path("own"), "--prompt", "a", "--tokens", "3"};
  const std::string config = save_step();
  EXPECT_EQ(run(generate), 1);
  TESSERA_EXPECT_HOLDS(err_.str(), path("own/step-1") + " does not say what model it is of");
  TESSERA_EXPECT_HOLDS(err_.str(), "give Config::json() as `config` of train::save");
  (void)save_step(config);
  EXPECT_EQ(run(generate), 0) << err_.str();
}

TEST_F(CheckpointCommandTest, WrongUsageIsNamed) {
  const auto error = [&](const Words& words, int status) {
    EXPECT_EQ(run(words), status);
    return err_.str();
  };
  TESSERA_EXPECT_HOLDS(error({"checkpoint"}, 2), "no action is given: give ls, inspect, verify");
  TESSERA_EXPECT_HOLDS(error({"checkpoint", "lst", "x"}, 2), "unknown action 'lst'");
  TESSERA_EXPECT_HOLDS(error({"checkpoint", "ls"}, 2), "[--folder] is missing");
  TESSERA_EXPECT_HOLDS(error({"checkpoint", "ls", path("none")}, 2), "none does not exist");
  ASSERT_EQ(run(train("a", {"--training.steps", "1"})), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(error({"checkpoint", "merge", path("a")}, 2), "[--output] is missing");
  TESSERA_EXPECT_HOLDS(error({"checkpoint", "inspect", path("a"), "--step", "7"}, 2),
                       "[--step] there is no step-7 in ");
}

}  // namespace
}  // namespace tessera::train
