// SPDX-License-Identifier: Apache-2.0
// Fine-tuning from the command line: an imported model on prompts with completions, against a loop
// in PyTorch, on any ranks; a run that goes on on another mesh; messages with a template of a file.
#include "tessera/dist/launch/run.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trained_golden.h"
#include "tessera/train/run/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
const std::string kPairs = "tests/goldens/fine_tuning.jsonl";

class FineTuning : public TinyRunTest {
 protected:
  // The losses of a run from the imported model. A step takes the whole set: four rows, as packed.
  std::vector<StepRecord> losses(const std::string& dump, const Words& more) {
    const auto golden = test::golden_json("fine_tuning");
    const auto& o = golden["optimizer"];
    Words words{"--config", path("imported/config.json"), "--hf_assets_path", "bytes"};
    const auto set = [&](const std::string& field, const nlohmann::json& value) {
      words.insert(words.end(),
                   {"--" + field, value.is_string() ? value.get<std::string>() : value.dump()});
    };
    set("dump_folder", path(dump));
    set("threads", 1);
    set("dataloader.path", kPairs);
    set("dataloader.format", "prompt_completion");
    set("training.seq_len", golden["seq_len"]);
    set("training.steps", golden["loss"].size());
    set("training.mixed_precision_param", "float32");
    set("training.max_norm", o["max_norm"]);
    for (const char* field : {"lr", "beta1", "beta2", "eps", "weight_decay"})
      set(std::string("optimizer.") + field, o[field]);
    set("lr_scheduler.warmup_steps", 0);
    set("lr_scheduler.decay_ratio", 0);
    set("sample.tokens", 0);
    const Config config = parse_config(joined(words, more));
    std::vector<StepRecord> records;
    const auto on_rank = [&](World& world) {
      Trainer trainer(config, [&](const std::string& line) { out_ << line << '\n'; });
      trainer.run();
      if (world.rank() == 0) records = trainer.records();
    };
    run_ranks(static_cast<int>(std::max<int64_t>(1, config.ranks)), on_rank, world_options(config));
    return records;
  }
};

TEST_F(FineTuning, TwentyStepsFromAnImportedModelEqualPyTorchOnAnyRanks) {
  ASSERT_EQ(run({"import-hf", "tests/goldens/hugging_face/llama3", "--out", path("imported")}), 0)
      << err_.str();
  const auto golden = test::golden_json("fine_tuning");
  const std::vector<Words> meshes{
      {"--training.local_batch_size", "4"},
      {"--training.local_batch_size", "2", "--ranks", "2"},
      {"--training.local_batch_size", "1", "--ranks", "4", "--parallelism.tensor_parallel_degree",
       "2", "--training.global_batch_size", "4"}};
  for (size_t mesh = 0; mesh < meshes.size(); ++mesh) {
    SCOPED_TRACE(concat("mesh ", mesh));
    out_.str("");
    const auto records = losses(concat("run", mesh), meshes[mesh]);
    EXPECT_NE(out_.str().find(concat(", 4 windows of ", golden["seq_len"].get<int64_t>())),
              std::string::npos)
        << out_.str();
    EXPECT_NE(
        out_.str().find(concat("fine-tuning: ", golden["targets"].get<int64_t>(), " targets")),
        std::string::npos)
        << out_.str();
    ASSERT_EQ(records.size(), golden["loss"].size());
    double worst = 0;
    for (size_t i = 0; i < records.size(); ++i) {
      const double loss = golden["loss"][i], norm = golden["grad_norm"][i];
      worst = std::max(worst, std::abs(records[i].loss - loss));
      EXPECT_NEAR(records[i].loss, loss, 1e-4) << "step " << i + 1;
      EXPECT_NEAR(records[i].grad_norm, norm, 1e-3 * norm) << "step " << i + 1;
    }
    std::cout << "mesh " << mesh << ": worst difference of losses " << worst << '\n';
  }
}

TEST_F(FineTuning, ARunGoesOnOnAnotherMeshWithTheNextRows) {
  const Words words{"--dataloader.path",
                    kPairs,
                    "--dataloader.format",
                    "prompt_completion",
                    "--training.seq_len",
                    "48",
                    "--training.global_batch_size",
                    "4",
                    "--training.local_batch_size",
                    "1",
                    "--lr_scheduler.decay_ratio",
                    "0",
                    "--training.mixed_precision_param",
                    "float32"};
  const auto with = [&](const std::string& dump, const Words& more) {
    return train(dump, joined(words, more));
  };
  ASSERT_EQ(run(with("straight", {"--training.steps", "6"})), 0) << err_.str();
  ASSERT_EQ(run(with("cut", {"--training.steps", "3", "--ranks", "2"})), 0) << err_.str();
  ASSERT_EQ(run(with("cut", {"--training.steps", "6", "--ranks", "4"})), 0) << err_.str();
  const auto losses_of = [&](const std::string& dump) {
    std::vector<double> losses;
    std::istringstream lines(io::read_file(path(dump + "/metrics.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      const auto record = nlohmann::json::parse(line);
      if (record.contains("loss")) losses.push_back(record["loss"]);
    }
    return losses;
  };
  const auto straight = losses_of("straight"), cut = losses_of("cut");
  ASSERT_EQ(straight.size(), 6u);
  ASSERT_EQ(cut.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(cut[i], straight[i], 1e-5) << "step " << i + 1;
}

TEST_F(FineTuning, ConversationsAreLearnedEvaluatedAndValidated) {
  std::string lines;
  for (const char* name : {"red", "green", "blue"})
    lines += concat(R"({"messages": [{"role": "user", "content": "which?"}, )",
                    R"({"role": "assistant", "content": ")", name, "\"}]}\n");
  const std::string set = put("set.jsonl", lines);
  const std::string chat = put("chat.json", R"({"roles": {
      "user": {"prefix": [{"mark": "<begin>"}, "user: "], "suffix": ["\n"]},
      "assistant": {"prefix": ["assistant: "], "suffix": [{"mark": "<end>"}]}}})");
  ASSERT_EQ(run(train("run", {"--dataloader.path", set, "--dataloader.format", "messages",
                              "--dataloader.chat_template", chat, "--training.seq_len", "64",
                              "--training.steps", "2", "--validation.enable",
                              "--validation.dataset_path", set})),
            0)
      << err_.str();
  // The letters of three names and three ends.
  EXPECT_NE(out_.str().find("fine-tuning: 15 targets"), std::string::npos) << out_.str();
  EXPECT_NE(out_.str().find("tokens: 15"), std::string::npos) << out_.str();
  ASSERT_EQ(run({"generate", "--checkpoint", path("run"), "--chat_template", chat, "--prompt",
                 "which?", "--tokens", "4"}),
            0)
      << err_.str();
  EXPECT_TRUE(out_.str().starts_with("which?\n")) << out_.str();
  ASSERT_EQ(run({"eval", "--checkpoint", path("run"), "--dataset_path", set}), 0) << err_.str();
  EXPECT_NE(out_.str().find("tokens: 15"), std::string::npos) << out_.str();

  EXPECT_EQ(run(train("none", {"--dataloader.path", set, "--dataloader.format", "messages",
                               "--dataloader.chat_template", "qwen"})),
            2);
  EXPECT_NE(err_.str().find("'qwen' is neither a file nor one of plain, chatml"), std::string::npos)
      << err_.str();
}

TEST_F(FineTuning, SamplesDoNotReadTheTemplateAgain) {
  const std::string set = put("set.jsonl", R"({"prompt": "which?", "completion": "red"})"
                                           "\n");
  const std::string chat = put("chat.json", R"({"roles": {
      "user": {"prefix": [{"mark": "<begin>"}], "suffix": ["\n"]},
      "assistant": {"prefix": [], "suffix": [{"mark": "<end>"}]}}})");
  const Config run = config("run", {"--dataloader.path", set, "--dataloader.format",
                                    "prompt_completion", "--dataloader.chat_template", chat,
                                    "--training.seq_len", "64", "--sample.tokens", "2"});
  const auto on_rank = [&](World&) {
    Trainer trainer(run, [&](const std::string& line) { out_ << line << '\n'; });
    fs::remove(chat);
    trainer.print_samples();
  };
  run_ranks(1, on_rank, world_options(run));
  EXPECT_NE(out_.str().find("greedy text:"), std::string::npos) << out_.str();
}

}  // namespace
}  // namespace tessera::train
