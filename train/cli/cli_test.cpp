// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/cli/cli.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/nn/io/files.h"
#include "tessera/nn/io/safetensors.h"
#include "tessera/tests/support/parameter_of.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/train/run/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

class CliTest : public TinyRunTest {
 protected:
  CliTest() { (void)put("text.txt", fox_text(200)); }
  [[nodiscard]] Words train(const std::string& dump, const Words& more = {}) const {
    const Words words =
        joined({"train", "--dataloader.path", path("text.txt"), "--dump_folder", path(dump)},
               tiny_model());
    const Words options{"--training.steps",
                        "12",
                        "--training.local_batch_size",
                        "4",
                        "--training.seq_len",
                        "32",
                        "--optimizer.lr",
                        "1e-2",
                        "--sample.tokens",
                        "8",
                        "--debug.seed",
                        "7"};
    return joined(joined(words, options), more);
  }
  [[nodiscard]] Config config(const Words& more = {}) const {
    const Words words = train("a", more);
    return parse_config(std::span(words).subspan(1));
  }
  [[nodiscard]] std::string file(const std::string& name) const {
    return io::read_file(folder_ + "/" + name);
  }
  [[nodiscard]] std::string out() const { return out_.str(); }
  [[nodiscard]] std::string err() const { return err_.str(); }
};

TEST_F(CliTest, TrainsAndLeavesEverythingBehind) {
  ASSERT_EQ(run(train("a")), 0) << err();
  EXPECT_NE(out().find("step:  1  loss: "), std::string::npos) << out();
  EXPECT_NE(out().find("step: 12  loss: "), std::string::npos);
  EXPECT_NE(out().find("greedy text:\n"), std::string::npos);
  EXPECT_NE(out().find("sampled text"), std::string::npos);
  const std::string metrics = file("a/metrics.jsonl");
  EXPECT_EQ(std::ranges::count(metrics, '\n'), 12);
  EXPECT_TRUE(file("a/loss.svg").starts_with("<svg"));
  const Session session;
  EXPECT_EQ(io::SafetensorsFile(folder_ + "/a/model.safetensors").entries().size(), 2 * 9 + 3u);
  EXPECT_EQ(read_config(folder_ + "/a/config.json").model.as<llama3::Config>().dim, 32);
}

TEST_F(CliTest, LearnsTheText) {
  run_ranks(1, [&](World&) {
    Trainer trainer(config({"--training.steps", "60"}));
    const double first = trainer.step().loss;
    while (trainer.records().size() < 60) trainer.step();
    EXPECT_NEAR(first, 5.6, 0.5);  // about log 260
    EXPECT_LT(trainer.records().back().loss, 2.5);
  });
}

TEST_F(CliTest, TwoRunsGiveTheSameBits) {
  ASSERT_EQ(run(train("a")), 0) << err();
  ASSERT_EQ(run(train("b")), 0) << err();
  EXPECT_EQ(file("a/model.safetensors"), file("b/model.safetensors"));
  ASSERT_EQ(run(train("c", {"--debug.seed", "8"})), 0) << err();
  EXPECT_NE(file("a/model.safetensors"), file("c/model.safetensors"));
}

// The same global batch on one rank and cut over four, from the same seed.
TEST_F(CliTest, DataParallelTrainsAsOneRankDoes) {
  const auto losses = [&](int ranks, const std::string& rows) {
    std::vector<double> all;
    run_ranks(ranks, [&](World& world) {
      Trainer trainer(
          config({"--training.local_batch_size", rows, "--training.steps", "8", "--overwrite"}));
      for (int i = 0; i < 8; ++i) {
        const StepRecord r = trainer.step();
        if (world.rank() == 0) all.insert(all.end(), {r.loss, r.grad_norm});
      }
    });
    return all;
  };
  const auto one = losses(1, "8"), four = losses(4, "2");
  ASSERT_EQ(one.size(), 16u);
  for (size_t i = 0; i < one.size(); ++i)
    EXPECT_NEAR(four[i], one[i], 1e-5 * std::abs(one[i])) << i;
}

TEST_F(CliTest, TrainsOnRanksOfThisProcess) {
  ASSERT_EQ(run(train("a", {"--ranks", "3", "--training.local_batch_size", "1"})), 0) << err();
  EXPECT_NE(out().find("mesh: mesh(dp_replicate=1, dp_shard=3, cp=1, tp=1)"), std::string::npos)
      << out();
  const Session session;
  EXPECT_EQ(io::SafetensorsFile(folder_ + "/a/model.safetensors").entries().size(), 2 * 9 + 3u);
}

TEST_F(CliTest, MemoryDoesNotGrowWithSteps) {
  run_ranks(1, [&](World& world) {
    Trainer trainer(config({"--training.steps", "100"}));
    for (int i = 0; i < 3; ++i) trainer.step();
    const MemoryStats before = world.session().context().allocator(kCpu)->stats();
    for (int i = 0; i < 20; ++i) trainer.step();
    const MemoryStats after = world.session().context().allocator(kCpu)->stats();
    EXPECT_EQ(after.live, before.live);
    EXPECT_EQ(after.peak, before.peak);
  });
}

TEST_F(CliTest, GeneratesFromACheckpoint) {
  ASSERT_EQ(run(train("a")), 0) << err();
  const Words words{"generate", "--checkpoint",  folder_ + "/a",
                    "--prompt", "the ",          "--tokens",
                    "5",        "--temperature", "0"};
  ASSERT_EQ(run(words), 0) << err();
  const std::string text = out();
  EXPECT_TRUE(text.starts_with("the "));
  ASSERT_EQ(run(words), 0);
  EXPECT_EQ(out(), text);
}

TEST_F(CliTest, ValidatesAndEvaluatesAlike) {
  const std::string text = folder_ + "/text.txt";
  ASSERT_EQ(run(train("a", {"--validation.enable", "--validation.dataset_path", text,
                            "--validation.freq", "12", "--validation.steps", "-1"})),
            0)
      << err();
  const size_t at = out().find("validate step: 12  loss:");
  ASSERT_NE(at, std::string::npos) << out();
  const std::string loss = out().substr(out().find("loss:", at) + 7, 7);
  for (const char* ranks : {"1", "3"}) {
    ASSERT_EQ(run({"eval", "--checkpoint", folder_ + "/a", "--ranks", ranks}), 0) << err();
    EXPECT_TRUE(out().starts_with("loss: " + loss)) << out() << loss;
    EXPECT_NE(out().find("  perplexity: "), std::string::npos);
  }
  EXPECT_NE(file("a/metrics.jsonl").find("{\"step\": 12, \"validation_loss\": "),
            std::string::npos);
}

// Found before ranks start: one line, whatever their number.
TEST_F(CliTest, EvaluationChecksSeqLenAndDataFirst) {
  const std::string rows = folder_ + "/rows.npy";
  std::string npy("\x93NUMPY\x01\x00\x76\x00", 10);
  npy += "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 9), }";
  npy.resize(127, ' ');
  io::write_file_atomically(rows, npy + "\n" + std::string(2 * 9 * 2, '\1'));
  ASSERT_EQ(run(train("a", {"--model.max_seq_len", "64"})), 0) << err();
  for (const char* ranks : {"0", "3"}) {
    const auto eval = [&](const Words& more) {
      return run(joined({"eval", "--checkpoint", folder_ + "/a", "--ranks", ranks}, more));
    };
    EXPECT_EQ(eval({"--seq_len", "65"}), 2);
    EXPECT_EQ(err(), "error: [--seq_len] 65 is above the model's max_seq_len 64\n");
    EXPECT_EQ(eval({"--dataset_path", rows, "--seq_len", "16"}), 1);
    EXPECT_TRUE(err().starts_with("error: [dataset_path] " + rows + " holds rows of 9 tokens, but"))
        << err();
    EXPECT_EQ(std::ranges::count(err(), '\n'), 1);
    EXPECT_EQ(eval({"--dataset_path", folder_ + "/none"}), 2);
    EXPECT_EQ(err(), "error: [dataset_path] " + folder_ + "/none does not exist\n");
    EXPECT_EQ(eval({"--seq_len", "64"}), 0) << err();
  }
}

TEST_F(CliTest, ComparesTwoConfigurations) {
  Config c = config();
  c.training.steps = 5;
  io::write_file_atomically(folder_ + "/a.json", c.fields().dump());
  c.activation_checkpoint.mode = nn::ActivationCheckpointConfig::Mode::full;
  io::write_file_atomically(folder_ + "/b.json", c.fields().dump());
  c.optimizer.lr = 0.02;
  io::write_file_atomically(folder_ + "/c.json", c.fields().dump());
  Words words{"compare", folder_ + "/a.json", folder_ + "/b.json", "--tolerance",
              "0",       "--dump_folder",     folder_ + "/compare"};
  ASSERT_EQ(run(words), 0) << err();
  EXPECT_NE(out().find("largest relative difference: loss: equal, gradient norm: equal"),
            std::string::npos)
      << out();
  words[2] = folder_ + "/c.json";
  EXPECT_EQ(run(words), 2);
  EXPECT_NE(err().find("compare/a holds the results of another run"), std::string::npos) << err();
  words.emplace_back("--overwrite");
  EXPECT_EQ(run(words), 1);
  EXPECT_TRUE(err().starts_with("error: [compare] largest relative difference: loss: ")) << err();
}

TEST_F(CliTest, NonFiniteLossStopsBeforeTheUpdateAndNamesTheModule) {
  run_ranks(1, [&](World&) {
    Trainer trainer(config());
    trainer.step();
    auto& feed_forward = *dynamic_cast<llama3::Model&>(trainer.model()).layers[1].feed_forward;
    const NoGrad guard;
    for (auto* w : {&feed_forward.w1, &feed_forward.w3})
      copy_bytes(local(w->weight), full(w->weight.shape(), 1e20));
    const auto untouched = local(test::parameter_of(trainer.model(), "output.weight")).values();
    {
      const GradMode recording(true);
      try {
        trainer.step();
        FAIL() << "nothing was thrown";
      } catch (const NumericError& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("[train] step 2: the loss is"), text.npos) << text;
        EXPECT_NE(text.find("first made by op swiglu in module layers.1.feed_forward;"), text.npos)
            << text;
      }
    }
    EXPECT_EQ(local(test::parameter_of(trainer.model(), "output.weight")).values(), untouched);
    Tensor& weight = feed_forward.w2.weight;
    copy_bytes(local(weight), full(weight.shape(), std::numeric_limits<double>::quiet_NaN()));
    const GradMode recording(true);
    try {
      trainer.step();
      FAIL() << "nothing was thrown";
    } catch (const NumericError& error) {
      EXPECT_NE(std::string(error.what()).find("parameter layers.1.feed_forward.w2.weight already"),
                std::string::npos)
          << error.what();
    }
  });
}

TEST_F(CliTest, AHugeLearningRateFailsWithOneLine) {
  EXPECT_EQ(run(train("a", {"--optimizer.lr", "1e6", "--training.steps", "100"})), 1);
  EXPECT_TRUE(err().starts_with("error: [train] step ")) << err();
  EXPECT_EQ(std::ranges::count(err(), '\n'), 1);
  EXPECT_FALSE(fs::exists(folder_ + "/a/model.safetensors"));
}

TEST_F(CliTest, AnErrorOfSeveralLinesKeepsThem) {
  Catalogue catalogue;
  catalogue.recipes.push_back({"lines", "fails", []() -> Config {
                                 fail<LayoutError>("cast", "would communicate:\n  input 0: i64[]",
                                                   "\n  fix: redistribute(input 0)");
                               }});
  EXPECT_EQ(run_cli(Words{"train", "--recipe", "lines"}, out_, err_, catalogue), 1);
  EXPECT_EQ(err(),
            "error: [cast] would communicate:\n  input 0: i64[]\n  fix: redistribute(input 0)\n");
}

TEST_F(CliTest, WrongUsageIsStatus2) {
  EXPECT_EQ(run({}), 2);
  EXPECT_NE(err().find("usage: tessera"), std::string::npos);
  EXPECT_EQ(run({"trian"}), 2);
  EXPECT_EQ(err(), "error: [tessera] unknown command 'trian'; did you mean train?\n");
  EXPECT_EQ(run({"train", "--training.steps", "0", "--x"}), 2);
  EXPECT_EQ(std::ranges::count(err(), '\n'), 2);
  EXPECT_EQ(run({"generate"}), 2);
}

TEST_F(CliTest, FailuresAtRunTimeAreStatus1) {
  EXPECT_EQ(run(train("text.txt/x")), 1);
  EXPECT_TRUE(err().starts_with("error: [dump_folder] cannot write in folder ")) << err();
  EXPECT_EQ(run({"generate", "--checkpoint", folder_}), 1);
  EXPECT_TRUE(err().starts_with("error: [checkpoint] ")) << err();
}

TEST_F(CliTest, AModelsFileHoldsTensorsOfKnownTypes) {
  ASSERT_EQ(run(joined({"config"}, tiny_model())), 0) << err();
  (void)put("m/config.json", out());
  const std::string header = R"({"w":{"dtype":"U16","shape":[1],"data_offsets":[0,2]}})";
  const std::string file = put("m/model.safetensors", static_cast<char>(header.size()) +
                                                          std::string(7, '\0') + header + "xx");
  EXPECT_EQ(run({"generate", "--checkpoint", path("m")}), 1);
  EXPECT_EQ(err(), "error: [checkpoint] " + file + ": w is U16 of 1 dim, which is not supported\n");
}

TEST_F(CliTest, HelpListsWhatThereIs) {
  EXPECT_EQ(run({"--help"}), 0);
  EXPECT_NE(out().find("generate"), std::string::npos);
  EXPECT_EQ(run({"--version"}), 0);
  EXPECT_TRUE(out().starts_with("tessera "));
  EXPECT_EQ(run({"train", "--help"}), 0);
  EXPECT_NE(out().find("--training.steps"), std::string::npos);
  EXPECT_NE(out().find("integer; default 10 steps, 1 to 1000000000000"), std::string::npos)
      << out();
  EXPECT_EQ(run({"compare", "--help"}), 0);
  EXPECT_TRUE(out().starts_with("usage: tessera compare A.json B.json [fields]\n")) << out();
  EXPECT_EQ(run({"recipes", "--help"}), 0);
  EXPECT_TRUE(out().starts_with("usage: tessera recipes\n")) << out();
  EXPECT_EQ(run({"recipes"}), 0);
  EXPECT_TRUE(out().starts_with("llama3_debugmodel"));
  EXPECT_NE(out().find("llama3_405b"), std::string::npos);
  EXPECT_EQ(run({"config", "--optimizer.lr", "0.5"}), 0);
  EXPECT_NE(out().find("\"lr\": 0.5"), std::string::npos);
}

}  // namespace
}  // namespace tessera::train
