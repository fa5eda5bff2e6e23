// SPDX-License-Identifier: Apache-2.0
// Runs whose sequences are cut over ranks have the numbers of one rank, in training and validation.
// tests/mesh trains on every mesh.
#include "tessera/dist/launch/run.h"
#include "tessera/nn/io/files.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/run/compare.h"
#include "tessera/train/run/trainer.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace tessera::train {
namespace {

const std::string kDegree = "--parallelism.context_parallel_degree",
                  kBalancer = "--parallelism.context_parallel_load_balancer",
                  kMethod = "--parallelism.context_parallel_rotate_method",
                  kHeads = "--parallelism.context_parallel_ulysses_degree",
                  kReplicate = "--parallelism.data_parallel_replicate_degree",
                  kShard = "--parallelism.data_parallel_shard_degree",
                  kTensor = "--parallelism.tensor_parallel_degree",
                  kExperts = "--parallelism.expert_parallel_degree",
                  kCheckpoint = "--activation_checkpoint.mode";

class ContextParallelTest : public TinyRunTest {
 protected:
  ContextParallelTest() {
    std::string lines;
    for (int i = 0; i < 60; ++i) {
      lines += R"({"text": ")";
      for (int word = 0; word <= i % 4; ++word) lines += concat(i * word, " foxes ");
      lines += "\"}\n";
    }
    (void)put("lines.jsonl", lines);
  }
  // Sequences of a length that nothing divides, in f64, with validation at another.
  [[nodiscard]] Words words(const Words& more) const {
    return joined({"--dataloader.path", path("lines.jsonl"), "--training.seq_len", "29",
                   "--training.global_batch_size", "8", "--training.dtype", "float64",
                   "--training.mixed_precision_param", "float64", "--validation.enable",
                   "--validation.dataset_path", path("lines.jsonl"), "--validation.seq_len", "17",
                   "--validation.steps", "3", "--metrics.measure_ceiling", "false"},
                  more);
  }
  // Losses and norms of three steps, then the validation's loss and tokens.
  std::vector<double> figures(int ranks, int64_t rows, const Words& more) {
    const std::string dump = concat("run", runs_++);
    Config c =
        config(dump, joined(words({"--training.local_batch_size", std::to_string(rows)}), more));
    c.validation.local_batch_size = 8 / c.parallelism.data_parts(ranks);
    std::vector<double> all;
    run_ranks(
        ranks,
        [&](World& world) {
          Trainer trainer(c);
          std::vector<double> own;
          for (int i = 0; i < 3; ++i) {
            const StepRecord r = trainer.step();
            own.insert(own.end(), {r.loss, r.grad_norm, r.flops});
          }
          const Evaluation e = trainer.validate();
          own.push_back(e.loss);
          if (world.rank() == 0) all = own;
        },
        world_options(c));
    return all;
  }
  struct Case {
    int ranks;
    int64_t rows;
    Words more;
  };
  void expect_one_rank(const Words& beside, const std::vector<Case>& cases) {
    const std::vector<double> one = figures(1, 8, beside);
    for (const Case& c : cases) {
      std::string text;
      for (const std::string& word : c.more) text += word + ' ';
      const std::vector<double> got = figures(c.ranks, c.rows, joined(beside, c.more));
      ASSERT_EQ(got.size(), one.size()) << text;
      for (size_t i = 0; i < one.size(); ++i)
        EXPECT_LE(relative_difference(got[i], one[i]), 1e-10) << text << ", " << i;
    }
  }

 private:
  int runs_ = 0;
};

TEST_F(ContextParallelTest, PackedDocumentsTrainAsOnOneRank) {
  expect_one_rank(
      {}, {{2, 8, {kDegree, "2"}},
           {3, 8, {kDegree, "3", kBalancer, "document_headtail", kMethod, "alltoall"}},
           {4, 8, {kDegree, "4", kBalancer, "ptrr", kHeads, "2", kMethod, "alltoall"}},
           {2, 8, {kDegree, "2", kBalancer, "none", kHeads, "2", kCheckpoint, "full"}},
           {4, 8, {kDegree, "2", kTensor, "2", kMethod, "alltoall", kCheckpoint, "selective"}},
           {4, 2, {kDegree, "2", kReplicate, "2", kCheckpoint, "full"}},
           {8, 1, {kDegree, "2", kReplicate, "2", kShard, "2", kBalancer, "document_headtail"}}});
}

TEST_F(ContextParallelTest, SequencesWithoutDocumentsTrainAsOnOneRank) {
  expect_one_rank({"--dataloader.packing", "concat"},
                  {{2, 8, {kDegree, "2", kBalancer, "document_headtail"}},
                   {4, 8, {kDegree, "4", kMethod, "alltoall"}},
                   {4, 4, {kDegree, "2", kBalancer, "ptrr", kHeads, "2"}}});
}

// The experts of a layer are shared by the ranks that share sequences too.
TEST_F(ContextParallelTest, ExpertsOnCutSequencesTrainAsOnOneRank) {
  const Words experts{"--model.name",
                      "qwen3",
                      "--model.flavor",
                      "debugmodel_moe_small",
                      "--model.num_experts",
                      "4",
                      "--model.moe_inter_dim",
                      "12",
                      "--model.balance_loss_coeff",
                      "0.01"};
  expect_one_rank(experts,
                  {{2, 8, {kDegree, "2", kExperts, "2"}},
                   {4, 4, {kDegree, "2", kShard, "2", kExperts, "4", kCheckpoint, "selective"}},
                   {4, 8, {kDegree, "2", kTensor, "2", kExperts, "4", kCheckpoint, "full"}},
                   {4,
                    8,
                    {kDegree, "2", kTensor, "2", kExperts, "2",
                     "--parallelism.expert_tensor_parallel_degree", "2"}},
                   {4, 8, {kDegree, "4", kHeads, "2", kMethod, "alltoall", kExperts, "2"}}});
}

// Empty parts: a sequence is shorter than the ranks that share it.
TEST_F(ContextParallelTest, RanksMayHaveNoToken) {
  expect_one_rank({"--training.seq_len", "3", "--validation.seq_len", "2"},
                  {{4, 8, {kDegree, "4", kMethod, "alltoall"}}, {4, 8, {kDegree, "4"}}});
}

// Prompts of one token and of many, two at once, and texts beyond the context, whose prompts are
// cut again; the samples of a run too.
TEST_F(ContextParallelTest, TextsAreThoseOfOneRank) {
  const std::vector<Words> meshes{
      {"--ranks", "2", kDegree, "2"},
      {"--ranks", "3", kDegree, "3", kMethod, "alltoall", kBalancer, "ptrr"},
      {"--ranks", "4", kDegree, "2", kTensor, "2", kHeads, "2", kBalancer, "document_headtail"},
      {"--ranks", "4", kDegree, "4", kHeads, "2", kMethod, "alltoall", kBalancer, "none"}};
  const auto samples = [&](const std::string& dump, const Words& mesh) {
    EXPECT_EQ(
        run(train(dump, joined({"--training.dtype", "float64", "--training.mixed_precision_param",
                                "float64", "--training.seq_len", "24", "--sample.tokens", "30",
                                "--metrics.measure_ceiling", "false"},
                               mesh))),
        0)
        << err_.str();
    const std::string out = out_.str();
    const size_t at = out.find("greedy text:");
    EXPECT_NE(at, std::string::npos) << out;
    return at == std::string::npos ? out : out.substr(at);
  };
  const std::string sampled = samples("one", {});
  EXPECT_EQ(samples("two", meshes[2]), sampled);
  const auto texts = [&](const std::string& temperature, const Words& mesh) {
    const Words words{"generate",
                      "--checkpoint",
                      path("one"),
                      "--prompt",
                      "t",
                      "--prompt",
                      "the quick brown",
                      "--prompt",
                      "dog",
                      "--prompt",
                      "fox",
                      "--tokens",
                      "32",
                      "--threads",
                      "1",
                      "--seed",
                      "3",
                      "--temperature",
                      temperature};
    EXPECT_EQ(run(joined(words, mesh)), 0) << err_.str();
    return out_.str();
  };
  for (const std::string temperature : {"0", "0.9"}) {
    const std::string one = texts(temperature, {});
    for (const Words& mesh : meshes) EXPECT_EQ(texts(temperature, mesh), one) << mesh[3];
  }
}

// A run that fails in torchtitan 0.2.2 (its issue 3340), in small: all that it asks for works, and
// gives the same bits again.
TEST_F(ContextParallelTest, FourRanksWithSelectiveCheckpointsAndValidationRun) {
  const Words all{"--ranks",
                  "4",
                  kDegree,
                  "4",
                  kCheckpoint,
                  "selective",
                  "--training.seq_len",
                  "64",
                  "--training.steps",
                  "6",
                  "--optimizer.lr",
                  "1e-4",
                  "--lr_scheduler.warmup_steps",
                  "10",
                  "--validation.enable",
                  "--validation.dataset_path",
                  path("text.txt"),
                  "--validation.freq",
                  "3",
                  "--validation.steps",
                  "2",
                  "--debug.seed",
                  "42",
                  "--debug.deterministic",
                  "--checkpoint.interval",
                  "3",
                  "--checkpoint.export_dtype",
                  "bfloat16",
                  "--memory.check",
                  "false"};
  ASSERT_EQ(run(train("a", all)), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "warning: checkpoint.export_dtype bfloat16 is not used");
  TESSERA_EXPECT_HOLDS(out_.str(), "sequences: cut into 4 parts");
  TESSERA_EXPECT_HOLDS(out_.str(), "validate step:  6");
  for (const char* step : {"step-3", "step-6"})
    EXPECT_TRUE(std::filesystem::exists(path(concat("a/checkpoint/", step)))) << step;
  ASSERT_EQ(run(train("b", all)), 0) << err_.str();
  size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(path("a/checkpoint/step-6"))) {
    const std::string name = file.path().filename().string();
    if (!name.ends_with(".safetensors")) continue;
    ++files;
    EXPECT_TRUE(io::read_file(path("a/checkpoint/step-6/" + name)) ==
                io::read_file(path("b/checkpoint/step-6/" + name)))
        << name;
  }
  EXPECT_GT(files, 0u);
}

TEST_F(ContextParallelTest, OnlyTokensThatKeepTheirPlacesKeepWhatPlacesDecide) {
  Config c = parse_config(Words{"--model.name", "gpt2", "--model.flavor", "debugmodel",
                                "--model.residual_dropout", "0.25", kDegree, "2"});
  ASSERT_EQ(c.warnings().size(), 1u);
  TESSERA_EXPECT_HOLDS(c.warnings()[0], "model.residual_dropout 0.25 has other masks than on one");
  c.parallelism.context_parallel_load_balancer = nn::LoadBalancer::none;
  EXPECT_TRUE(c.warnings().empty());
  EXPECT_NO_THROW(
      (void)config("a", {kDegree, "2", kBalancer, "none", "--model.name", "qwen3", "--model.flavor",
                         "debugmodel_moe_small", "--model.capacity_factor", "1.5"}));
}

TEST_F(ContextParallelTest, FaultsAreFoundBeforeAnyRankStarts) {
  const auto expect_fault = [&](const Words& more, const std::string& fault) {
    EXPECT_EQ(run(train("a", joined(more, {"--ranks", "4", "--memory.check", "false"}))), 2);
    TESSERA_EXPECT_HOLDS(err_.str(), fault);
    EXPECT_EQ(out_.str(), "");
  };
  expect_fault({kDegree, "3"}, "context_parallel_degree 3 x tensor_parallel_degree 1 = 3, which ");
  expect_fault({kDegree, "4", kHeads, "3"},
               "[--parallelism.context_parallel_ulysses_degree] 3 does not divide "
               "--parallelism.context_parallel_degree 4");
  expect_fault({kDegree, "4", kHeads, "2"},
               "[--parallelism.context_parallel_ulysses_degree] 2 of 4 ranks exchange heads, and "
               "keys go round: give --parallelism.context_parallel_rotate_method alltoall");
  expect_fault({kDegree, "4", kHeads, "4", "--model.n_heads", "6", "--model.dim", "48"},
               "[--parallelism.context_parallel_ulysses_degree] 4 ranks cannot have equal shares "
               "of the 6 query heads and 2 key heads of ");
  expect_fault({kDegree, "4", "--model.name", "qwen3", "--model.flavor", "debugmodel_moe_small",
                "--model.capacity_factor", "1.5"},
               "[--model.capacity_factor] 1.5: experts take the first tokens of a sequence, whose "
               "order --parallelism.context_parallel_load_balancer changes; give that none");
  expect_fault({kBalancer, "headtial"}, "context_parallel_load_balancer");
}

}  // namespace
}  // namespace tessera::train
