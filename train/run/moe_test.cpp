// SPDX-License-Identifier: Apache-2.0
// A model with experts through the whole program: training with every loss of the routers, their
// figures in the log, checkpoints with the bias, evaluation, text, what is refused, and the balance
// that the bias brings about.
#include "tessera/core/op_row.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"
#include "tessera/models/qwen3/qwen3.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/monitor/metrics.h"
#include "tessera/train/parallel/parallelism.h"
#include "tessera/train/run/trainer.h"
#include "tessera/train/step/build_model.h"
#include "tessera/train/step/evaluate.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace tessera::train {
namespace {

class MoeTest : public TinyRunTest {
 protected:
  [[nodiscard]] Words tiny(const std::string& dump, const Words& more = {}) const {
    return joined({"train",
                   "--recipe",
                   "qwen3_debugmodel_moe_small",
                   "--dataloader.path",
                   path("text.txt"),
                   "--dump_folder",
                   path(dump),
                   "--model.dim",
                   "16",
                   "--model.n_layers",
                   "2",
                   "--model.n_heads",
                   "2",
                   "--model.n_kv_heads",
                   "1",
                   "--model.head_dim",
                   "8",
                   "--model.vocab_size",
                   "260",
                   "--model.num_experts",
                   "8",
                   "--model.top_k",
                   "2",
                   "--model.moe_inter_dim",
                   "12",
                   "--training.local_batch_size",
                   "2",
                   "--training.seq_len",
                   "16",
                   "--training.steps",
                   "4",
                   "--lr_scheduler.warmup_steps",
                   "0",
                   "--threads",
                   "1",
                   "--sample.tokens",
                   "0",
                   "--metrics.measure_ceiling",
                   "false",
                   "--checkpoint.enable"},
                  more);
  }
  [[nodiscard]] std::vector<double> metric(const std::string& dump, std::string_view name) const {
    return read_metrics(path(dump) + "/metrics.jsonl", name).values;
  }
};

TEST_F(MoeTest, TrainsResumesEvaluatesAndWritesText) {
  const Words losses{"--model.balance_loss_coeff",
                     "0.01",
                     "--model.z_loss_coeff",
                     "1e-3",
                     "--model.capacity_factor",
                     "1",
                     "--training.global_batch_size",
                     "4",
                     "--activation_checkpoint.mode",
                     "full",
                     "--metrics.enable_tensorboard",
                     "--metrics.step_line",
                     "moe/load_max_over_mean,loss/load_balance"};
  ASSERT_EQ(run(tiny("a", joined(losses, {"--sample.tokens", "3"}))), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "experts: a token uses ");
  TESSERA_EXPECT_HOLDS(out_.str(), "  moe/load_max_over_mean: ");
  for (const char* name :
       {"loss/load_balance", "loss/router_z", "moe/layer_0/load_entropy", "moe/layer_1/dropped"}) {
    const auto values = metric("a", name);
    ASSERT_EQ(values.size(), 4u) << name;
    for (const double v : values) EXPECT_TRUE(v > 0 && v < 1) << name << ' ' << v;
  }
  EXPECT_NEAR(metric("a", "loss/load_balance")[0], 0.01 * 2, 0.003);  // two layers, nearly even

  ASSERT_EQ(run(tiny("b", joined(losses, {"--training.steps", "2", "--lr_scheduler.decay_ratio",
                                          "0", "--checkpoint.last_save_model_only", "false"}))),
            0)
      << err_.str();
  ASSERT_EQ(run(tiny("c", joined(losses, {"--lr_scheduler.decay_ratio", "0"}))), 0) << err_.str();
  ASSERT_EQ(run(tiny("b", joined(losses, {"--lr_scheduler.decay_ratio", "0"}))), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "training resumes after step 2");
  // Equal only with the bias that the checkpoint holds.
  for (const char* name : {"loss", "moe/load_max_over_mean", "moe/layer_1/load_entropy"})
    EXPECT_EQ(metric("b", name), metric("c", name)) << name;
  EXPECT_EQ(run({"checkpoint", "inspect", path("b")}), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "layers.1.moe.expert_bias");

  EXPECT_EQ(run({"eval", "--checkpoint", path("a"), "--dataset_path", path("text.txt")}), 0)
      << err_.str();
  EXPECT_EQ(run({"generate", "--checkpoint", path("a"), "--tokens", "2"}), 0) << err_.str();
}

// Padding that holds every row changes nothing; less drops some, which the log counts.
TEST_F(MoeTest, PaddedExpertsDropWhatFindsNoPlace) {
  const Words ranks{"--ranks", "2", "--parallelism.expert_parallel_degree", "2"};
  const auto run_padded = [&](const std::string& factor) {
    EXPECT_EQ(run(tiny(factor, joined(ranks, {"--parallelism.expert_parallel_padding", factor}))),
              0)
        << err_.str();
    return metric(factor, "loss");
  };
  const std::vector<double> exchanged = run_padded("0"), padded = run_padded("4");
  for (size_t i = 0; i < exchanged.size(); ++i) EXPECT_NEAR(padded[i], exchanged[i], 1e-5);
  EXPECT_EQ(metric("4", "moe/layer_1/dropped"), std::vector<double>(4, 0));
  EXPECT_NE(run_padded("0.5"), exchanged);
  for (const double share : metric("0.5", "moe/layer_1/dropped")) EXPECT_GE(share, 0.5);
  // The sizes of a run are its own: a checkpoint is continued with others.
  EXPECT_EQ(run({"eval", "--checkpoint", path("0.5"), "--dataset_path", path("text.txt")}), 0)
      << err_.str();
}

// Ranks hold different numbers of tokens for their experts, and must recompute the same ops: those
// that exchange tokens among them.
TEST_F(MoeTest, AMemoryBudgetChoosesTheSameOnAllRanks) {
  const Words ranks{"--ranks", "2", "--parallelism.expert_parallel_degree", "2"};
  ASSERT_EQ(run(tiny("none", ranks)), 0) << err_.str();
  for (const char* budget : {"0.1", "0.3", "0.5", "0.7", "0.9"}) {
    ASSERT_EQ(run(tiny(budget, joined(ranks, {"--activation_checkpoint.mode", "memory_budget",
                                              "--activation_checkpoint.memory_budget", budget}))),
              0)
        << budget << ": " << err_.str();
    EXPECT_EQ(metric(budget, "loss"), metric("none", "loss")) << budget;
  }
}

TEST_F(MoeTest, AForcedBalanceIsEven) {
  ASSERT_EQ(run(tiny("a", {"--debug.moe_force_load_balance"})), 0) << err_.str();
  EXPECT_EQ(metric("a", "moe/load_max_over_mean"), std::vector<double>(4, 1));
  EXPECT_EQ(run(train("b", {"--debug.moe_force_load_balance"})), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "[--debug.moe_force_load_balance]");
  TESSERA_EXPECT_HOLDS(err_.str(), "has no experts");
  EXPECT_EQ(run({"config", "--debug.moe_force_load_balance"}), 2);  // before any rank starts
  TESSERA_EXPECT_HOLDS(err_.str(), "has no experts");
}

// The same model by a run that was forced and by one that was not.
TEST_F(MoeTest, AForcedBalanceIsOfTrainingAlone) {
  const Words forced{"--model.load_balance_coeff", "0", "--optimizer.lr", "1e-2",
                     "--debug.moe_force_load_balance"};
  const Words still{"--model.load_balance_coeff",
                    "0",
                    "--optimizer.lr",
                    "1e-30",
                    "--training.steps",
                    "1",
                    "--checkpoint.initial_load_path",
                    path("forced")};
  ASSERT_EQ(run(tiny("forced", forced)), 0) << err_.str();
  ASSERT_EQ(run(tiny("free", still)), 0) << err_.str();
  const auto evaluated = [&](const std::string& dump) {
    EXPECT_EQ(run({"eval", "--checkpoint", path(dump), "--dataset_path", path("text.txt")}), 0)
        << err_.str();
    return out_.str();
  };
  EXPECT_EQ(evaluated("forced"), evaluated("free"));
}

TEST_F(MoeTest, WhatCannotBeIsRefusedBeforeTheRun) {
  EXPECT_EQ(run(tiny("a", {"--model.top_k", "9"})), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "[--model.top_k] 9 is above --model.num_experts 8");
  EXPECT_EQ(run(tiny("a", {"--checkpoint.last_save_in_hf"})), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "load_balance_coeff 0.001 cannot be expressed in config.json");
  EXPECT_EQ(run(tiny("a", {"--metrics.step_line", "moe/lod"})), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "there is no value 'moe/lod': there are moe/load_max_over_mean");
}

Trainer trainer_of(const Words& words) {
  return Trainer(parse_config(std::span(words).subspan(1)));
}

void set(const Tensor& parameter, const Tensor& value) {
  const NoGrad guard;
  assign_(parameter, distribute(value, layout_of(parameter)));
}

TEST_F(MoeTest, ARouterThatFailsStopsTheRunAndIsNamed) {
  run_ranks(1, [&](World&) {
    Trainer trainer = trainer_of(tiny("a"));
    auto& model = dynamic_cast<qwen3::Model&>(trainer.model());
    set(model.layers[1].moe->router.gate.weight, full({8, 16}, 1e39, DType::f32, kCpu));
    try {
      trainer.step();
      FAIL() << "nothing was thrown";
    } catch (const NumericError& error) {
      TESSERA_EXPECT_HOLDS(std::string(error.what()),
                           "scores of routers are not finite: layers.1 (32 tokens)");
    }
    EXPECT_EQ(local(model.layers[0].moe->expert_bias).values(), std::vector<double>(8, 0));
  });
}

// Three rows of 16 places with 44 tokens on two ranks: the last row is cut short, and the second
// rank has none behind it.
TEST_F(MoeTest, AnEvaluationRoutesItsTokensAlone) {
  const Words words = tiny("a", {"--parallelism.expert_parallel_degree", "2"});
  const Config config = parse_config(std::span(words).subspan(1));
  const EvaluationPlan plan{.path = put("short.txt", std::string(42, 'a')),
                            .path_field = "dataset_path",
                            .seq_len = 16,
                            .vocabulary = 260,
                            .rows = 1};
  run_ranks(2, [&](World&) {
    const Mesh mesh = make_mesh(config.parallelism);
    const auto model = build_model(config, mesh, [](nn::Module& m, const nn::LayoutOf& layouts) {
      nn::initialize(m, 5, layouts);
    });
    DataLoader data = evaluation_data(config.dataloader, plan, mesh);
    BatchPlacer placer(model->metadata(16), data_share(mesh), kCpu, {});
    const NoGrad guard;
    std::vector<double> chosen;
    for (int64_t i = 0; i < data.info().batches; ++i) {
      const PlacedBatch batch = placer.place(data.next());
      const models::Loss loss = model->loss(batch.tokens, batch.targets, batch.metadata);
      for (int64_t layer = 0; layer < 2; ++layer)
        chosen.push_back(full_tensor(sum(loss.load, {-1})).values().at(2 * layer));
    }
    EXPECT_EQ(chosen, (std::vector<double>{64, 64, 24, 24}));  // two experts a token
  });
}

// The steps of a run, as every rank has them.
struct Balance {
  std::vector<std::vector<double>> counts;  // of tokens that chose each expert
  std::vector<std::vector<double>> biases;  // after the step
  std::vector<double> loads;                // the largest count over the mean
};

// Every token has a common direction, which the gate of two experts follows: nearly all tokens
// take them. All batches are the same text.
Balance balance_of_skewed(const Words& words, int ranks) {
  Balance result;
  run_ranks(ranks, [&](World& world) {
    Trainer trainer = trainer_of(words);
    auto& model = dynamic_cast<qwen3::Model&>(trainer.model());
    const nn::MoE& moe = *model.layers[0].moe;
    // So that a token's place in the text matters, and not its byte alone.
    for (const auto& [name, weight] : nn::named_parameters(model))
      if (weight.rank() > 1) set(weight, full_tensor(weight) * 10);
    const auto with_first_column = [](const Tensor& matrix, const Tensor& column) {
      return cat({column, slice(full_tensor(matrix), 1, {1})}, 1);
    };
    const Tensor tokens = model.tok_embeddings->weight, gate = moe.router.gate.weight;
    set(tokens, with_first_column(tokens, full({260, 1}, 2, DType::f64, kCpu)));
    set(gate,
        with_first_column(gate, from_values({0.45, 0, 0, 0.45, 0, 0, 0, 0}, {8, 1}, DType::f64)));
    Tensor chosen;  // (experts), a sum over the ranks
    Context::current().op_hook = [&chosen](const OpRow& row, const void*, Tensors, Tensors out) {
      if (row.name == "bincount" && out[0].is_distributed()) chosen = out[0];
    };
    for (int64_t step = 0; step < 160; ++step) {
      const double load = trainer.step().statistic("moe/load_max_over_mean");
      const std::vector<double> counts = full_tensor(chosen).values(),
                                bias = full_tensor(moe.expert_bias).values();
      if (world.rank() != 0) continue;
      result.loads.push_back(load);
      result.counts.push_back(counts);
      result.biases.push_back(bias);
    }
  });
  return result;
}

// In f64, where no rounding changes a choice, so that each step is the same with experts on
// different ranks.
TEST_F(MoeTest, TheBiasBalancesASkewedRouter) {
  std::mt19937 random(1);
  std::string text;
  for (int i = 0; i < 16 * 32 + 1; ++i) text += static_cast<char>('!' + random() % 90);
  const auto words = [&](const std::string& dump, const Words& mesh) {
    return tiny(dump,
                joined({"--model.n_layers", "1", "--training.seq_len", "32", "--training.steps",
                        "160", "--training.dtype", "float64", "--training.mixed_precision_param",
                        "float64", "--dataloader.path", put("same.txt", text), "--optimizer.lr",
                        "1e-4", "--checkpoint.enable", "false"},
                       mesh));
  };
  const Balance one = balance_of_skewed(words("one", {"--training.local_batch_size", "16"}), 1);
  EXPECT_GE(one.loads.front(), 3.9);  // 4: two experts take all
  EXPECT_LT(std::accumulate(one.loads.end() - 20, one.loads.end(), 0.0) / 20, 1.1);
  const Balance mesh = balance_of_skewed(
      words("mesh",
            {"--training.local_batch_size", "8", "--parallelism.expert_parallel_degree", "2"}),
      2);
  EXPECT_EQ(mesh.counts, one.counts);
  EXPECT_EQ(mesh.biases, one.biases);
  EXPECT_EQ(mesh.loads, one.loads);
}

}  // namespace
}  // namespace tessera::train
