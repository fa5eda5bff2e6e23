// SPDX-License-Identifier: Apache-2.0
// A family that the trainer has never heard of, through the whole program: fields, help, training
// with an auxiliary loss and figures of its own, checkpoints, evaluation, text.
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/toy_family.h"
#include "tessera/train/exchange/model.h"
#include "tessera/train/monitor/metrics.h"

#include <gtest/gtest.h>

namespace tessera::train {
namespace {

class FamilyTest : public TinyRunTest {
 protected:
  FamilyTest() { catalogue_.families.push_back(test::toy_family()); }
  int run(const Words& words) {
    out_.str("");
    err_.str("");
    return run_cli(words, out_, err_, catalogue_);
  }
  [[nodiscard]] Words train_toy(const Words& more = {}) const {
    Words words{"train",
                "--training.steps",
                "4",
                "--model.vocab_size",
                "260",
                "--training.local_batch_size",
                "4",
                "--dataloader.path",
                path("text.txt"),
                "--model.name",
                "toy",
                "--training.seq_len",
                "8",
                "--dump_folder",
                path("a"),
                "--model.flavor",
                "wide",
                "--training.mixed_precision_param",
                "float32",
                "--optimizer.lr",
                "0.2",
                "--lr_scheduler.warmup_steps",
                "0",
                "--sample.tokens",
                "3",
                "--threads",
                "1",
                "--checkpoint.enable"};
    return joined(words, more);
  }
  Catalogue catalogue_;
};

TEST_F(FamilyTest, TrainsEvaluatesAndWritesText) {
  ASSERT_EQ(run(train_toy()), 0) << err_.str();
  EXPECT_NE(out_.str().find("model: toy wide, 2,340 parameters"), std::string::npos) << out_.str();
  const std::string log = path("a") + "/metrics.jsonl";
  const Curve loss = read_metrics(log, "loss"), size = read_metrics(log, "loss/size");
  ASSERT_EQ(loss.values.size(), 4u);
  EXPECT_NEAR(size.values[0], 9, 4);  // nine normal numbers squared, per token
  EXPECT_LT(size.values[3], size.values[0]);
  EXPECT_EQ(read_metrics(log, "steps").values, (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(read_metrics(log, "load").values, std::vector<double>(4, 4 * 8));  // all tokens
  EXPECT_EQ(run({"eval", "--checkpoint", path("a"), "--dataset_path", path("text.txt")}), 0)
      << err_.str();
  EXPECT_EQ(run({"generate", "--checkpoint", path("a"), "--tokens", "2"}), 0) << err_.str();
  // The program without this family says which there are.
  std::ostringstream out, err;
  EXPECT_EQ(run_cli(Words{"eval", "--checkpoint", path("a")}, out, err), 1);
  EXPECT_NE(err.str().find("there is no 'toy'"), std::string::npos) << err.str();
}

// Of a fine-tuning set, in which few tokens have a target.
TEST_F(FamilyTest, AuxiliaryLossesAreMeansOverAllTokens) {
  const std::string set = put("set.jsonl", R"({"prompt": "abcd", "completion": ""})"
                                           "\n");
  ASSERT_EQ(run(train_toy({"--dataloader.path", set, "--dataloader.format", "prompt_completion"})),
            0)
      << err_.str();
  const Curve size = read_metrics(path("a") + "/metrics.jsonl", "loss/size");
  ASSERT_EQ(size.values.size(), 4u);
  EXPECT_NEAR(size.values[0], 9, 6);  // as in text: nine normal numbers squared, per token
}

TEST_F(FamilyTest, RanksAgreeWithOne) {
  ASSERT_EQ(run(train_toy({"--training.global_batch_size", "8"})), 0) << err_.str();
  ASSERT_EQ(run(train_toy({"--training.local_batch_size", "2", "--training.global_batch_size", "8",
                           "--ranks", "2", "--dump_folder", path("b")})),
            0)
      << err_.str();
  for (const char* name : {"loss", "loss/size"}) {
    const auto one = read_metrics(path("a") + "/metrics.jsonl", name).values;
    const auto two = read_metrics(path("b") + "/metrics.jsonl", name).values;
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(two[i], one[i], 1e-5 * one[i]) << name;
  }
  // Of all micro-batches and ranks.
  for (const char* folder : {"a", "b"})
    EXPECT_EQ(read_metrics(path(folder) + "/metrics.jsonl", "load").values,
              std::vector<double>(4, 8 * 8));
}

TEST_F(FamilyTest, HelpAndListsKnowIt) {
  EXPECT_EQ(run({"models"}), 0);
  EXPECT_NE(out_.str().find("toy          one table: small, wide"), std::string::npos)
      << out_.str();
  EXPECT_EQ(run({"train", "--help", "--model.name", "toy"}), 0);
  EXPECT_NE(out_.str().find("--model.dim"), std::string::npos);
  EXPECT_EQ(out_.str().find("--model.n_layers"), std::string::npos);
  EXPECT_NE(out_.str().find("fields, with the defaults of toy small:"), std::string::npos)
      << out_.str();
  EXPECT_EQ(run({"config", "--model.name", "toy"}), 2);
  EXPECT_NE(err_.str().find("[--model.flavor] is missing: give a size of toy: small, wide"),
            std::string::npos)
      << err_.str();
  EXPECT_EQ(
      run({"config", "--model.name", "toy", "--model.flavor", "small", "--model.n_layers", "3"}),
      2);
  EXPECT_NE(err_.str().find("[--model.n_layers] unknown field"), std::string::npos) << err_.str();
}

TEST_F(FamilyTest, EveryFamilyTrainsInF64) {
  for (const char* recipe : {"llama3_debugmodel", "gpt2_debugmodel"}) {
    const auto losses = [&](const Words& precision) {
      Words words{"train",
                  "--recipe",
                  recipe,
                  "--training.steps",
                  "2",
                  "--model.dim",
                  "32",
                  "--model.n_layers",
                  "1",
                  "--model.n_heads",
                  "2",
                  "--training.local_batch_size",
                  "2",
                  "--training.seq_len",
                  "8",
                  "--threads",
                  "1",
                  "--dataloader.path",
                  path("text.txt"),
                  "--dump_folder",
                  path(recipe),
                  "--overwrite",
                  "--sample.tokens",
                  "2"};
      if (std::string_view(recipe).starts_with("llama"))
        words.insert(words.end(), {"--model.n_kv_heads", "2", "--model.ffn_dim", "64"});
      words.insert(words.end(), precision.begin(), precision.end());
      EXPECT_EQ(run(words), 0) << err_.str();
      return read_metrics(path(recipe) + "/metrics.jsonl", "loss").values;
    };
    const auto wide =
        losses({"--training.dtype", "float64", "--training.mixed_precision_param", "float64"});
    EXPECT_NE(out_.str().find("precision: parameters f64 (training.dtype), computed in f64"),
              std::string::npos);
    const auto single = losses({});
    ASSERT_EQ(wide.size(), 2u);
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(wide[i], single[i], 1e-5) << recipe;
    EXPECT_NE(wide, single);
  }
}

TEST_F(FamilyTest, WithoutNamesOfHuggingFaceItNeitherGoesOutNorComesIn) {
  ASSERT_EQ(run(train_toy()), 0) << err_.str();
  EXPECT_EQ(run({"export-hf", "--checkpoint", path("a"), "--out", path("out")}), 2);
  EXPECT_EQ(err_.str(), "error: [--out] " + path("a/checkpoint/step-4") +
                            " is of family toy, which has no names of Hugging Face\n");
  const Words words = train_toy();
  const Config config = parse_config(std::span(words).subspan(1), catalogue_);
  EXPECT_EQ(test::error_of<ConfigError>([&] {
              const HfModelFolder folder("tests/goldens/hugging_face/llama3", config.model);
            }),
            "[--model.name] toy has no names of Hugging Face");
}

}  // namespace
}  // namespace tessera::train
