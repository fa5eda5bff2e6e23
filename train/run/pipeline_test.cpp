// SPDX-License-Identifier: Apache-2.0
// Runs with pipeline parallelism: the bits of one rank with the same micro-batches, its losses on
// meshes of several kinds, checkpoints from one pipeline to another, what is refused.
#include "tessera/dist/launch/run.h"
#include "tessera/nn/io/safetensors.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/run/faults.h"
#include "tessera/train/run/trainer.h"

#include <gtest/gtest.h>

#include <cstring>

namespace tessera::train {
namespace {

class PipelineRunTest : public TinyRunTest {
 protected:
  // Steps of 8 rows in micro-batches of one.
  [[nodiscard]] static Words of_step(int steps) {
    return {"--model.n_layers",
            "4",
            "--training.steps",
            std::to_string(steps),
            "--training.global_batch_size",
            "8",
            "--training.local_batch_size",
            "1",
            "--training.mixed_precision_param",
            "float32",
            "--lr_scheduler.decay_ratio",
            "0",
            "--lr_scheduler.warmup_steps",
            "1",
            "--sample.tokens",
            "0"};
  }
  [[nodiscard]] static Words pipeline(int degree, const std::string& schedule) {
    return {"--parallelism.pipeline_parallel_degree",
            std::to_string(degree),
            "--parallelism.pipeline_parallel_schedule",
            schedule,
            "--parallelism.pipeline_parallel_first_stage_less_layers",
            "0",
            "--parallelism.pipeline_parallel_last_stage_less_layers",
            "0"};
  }
  // Of a GPT-2 of some thousand parameters, whose head is the embedding.
  [[nodiscard]] Words gpt2(const std::string& dump, const Words& more) const {
    const Words model{"--model.name",
                      "gpt2",
                      "--model.flavor",
                      "debugmodel",
                      "--model.dim",
                      "32",
                      "--model.n_heads",
                      "4",
                      "--model.vocab_size",
                      "260",
                      "--training.seq_len",
                      "16",
                      "--optimizer.lr",
                      "1e-2",
                      "--checkpoint.enable",
                      "--debug.replica_check_freq",
                      "1"};
    return joined(joined(joined({"train"}, into(dump)), model), more);
  }
  // The losses and norms of a run on so many ranks.
  std::vector<double> train_on(int ranks, const Words& words) {
    EXPECT_EQ(run(joined(words, {"--ranks", std::to_string(ranks)})), 0) << err_.str();
    const std::string dump = words[4];
    std::vector<double> values = read_metrics(dump + "/metrics.jsonl", "loss").values;
    const Curve norms = read_metrics(dump + "/metrics.jsonl", "grad_norm");
    values.insert(values.end(), norms.values.begin(), norms.values.end());
    return values;
  }
  void expect_equal_models(const std::string& a, const std::string& b) const {
    const Session session;
    const auto x = io::SafetensorsFile(path(a + "/model.safetensors")).read_all();
    const auto y = io::SafetensorsFile(path(b + "/model.safetensors")).read_all();
    ASSERT_EQ(x.size(), y.size());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(x[i].name, y[i].name);
      EXPECT_EQ(x[i].tensor.values(), y[i].tensor.values()) << x[i].name;
    }
  }
};

TEST_F(PipelineRunTest, ChangesNoBitOfOneRank) {
  const Words same =
      joined(of_step(3), {"--checkpoint.enable", "false", "--training.max_norm", "0.5"});
  const std::vector<double> whole = train_on(1, train("one", same));
  for (const auto& [degree, schedule] : {std::pair(2, "1F1B"),
                                         {4, "1F1B"},
                                         {2, "GPipe"},
                                         {2, "Interleaved1F1B"},
                                         {2, "InterleavedZeroBubble"},
                                         {2, "ZBVZeroBubble"},
                                         {2, "DualPipeV"}}) {
    SCOPED_TRACE(concat(degree, " ranks, ", schedule));
    const std::string dump = concat(schedule, degree);
    const auto found = train_on(degree, train(dump, joined(same, pipeline(degree, schedule))));
    ASSERT_EQ(found.size(), whole.size());
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(found[i], whole[i], 1e-6 * whole[i]) << i;
    expect_equal_models("one", dump);
  }
}

TEST_F(PipelineRunTest, HasTheLossesOfOneRankOnMeshes) {
  const std::vector<double> whole = train_on(1, train("one", of_step(5)));
  const std::vector<Words> meshes{{"--parallelism.data_parallel_shard_degree", "2"},
                                  {"--parallelism.data_parallel_replicate_degree", "2"},
                                  {"--parallelism.context_parallel_degree", "2"},
                                  {"--parallelism.tensor_parallel_degree", "2"}};
  for (size_t i = 0; i < meshes.size(); ++i) {
    SCOPED_TRACE(meshes[i][0]);
    const auto found = train_on(
        4, train(concat("mesh", i), joined(of_step(5), joined(pipeline(2, "1F1B"), meshes[i]))));
    ASSERT_EQ(found.size(), whole.size());
    for (size_t j = 0; j < whole.size(); ++j)
      EXPECT_NEAR(found[j], whole[j], 1e-5 * (1 + whole[j])) << j;
  }
}

TEST_F(PipelineRunTest, GoesOnFromTheCheckpointOfAnotherPipeline) {
  const Words same = joined(of_step(4), {"--training.max_norm", "0.5", "--checkpoint.interval", "2",
                                         "--checkpoint.keep_latest_k", "0"});
  (void)train_on(1, train("straight", same));
  const auto half = [&](const std::string& dump, int degree, const std::string& steps) {
    Words words = train(dump, joined(same, {"--training.steps", steps}));
    if (degree > 1) words = joined(words, pipeline(degree, "1F1B"));
    (void)train_on(degree, words);
  };
  for (const auto& [first, second] : {std::pair(1, 2), {2, 4}, {4, 1}}) {
    SCOPED_TRACE(concat("from ", first, " to ", second));
    const std::string dump = concat("from", first);
    half(dump, first, "2");
    half(dump, second, "4");
    const Session session;
    const CheckpointReader x(CheckpointFolder(path("straight/checkpoint")).folder_of(4)),
        y(CheckpointFolder(path(dump + "/checkpoint")).folder_of(4));
    const auto a = x.read_all(x.manifest().optimizer), b = y.read_all(y.manifest().optimizer);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(a[i].name, b[i].name);
      EXPECT_EQ(a[i].tensor.values(), b[i].tensor.values()) << a[i].name;
    }
  }
}

TEST_F(PipelineRunTest, MixturesBalanceTheirExpertsOverStages) {
  const Words moe{"--model.name",
                  "qwen3",
                  "--model.flavor",
                  "debugmodel_moe_small",
                  "--model.num_experts",
                  "4",
                  "--model.top_k",
                  "2",
                  "--model.moe_inter_dim",
                  "16",
                  "--model.load_balance_coeff",
                  "0.01",
                  "--model.balance_loss_coeff",
                  "0.1",
                  "--model.head_dim",
                  "8"};
  const Words same = joined(joined(moe, of_step(3)),
                            {"--checkpoint.enable", "false", "--training.max_norm", "0.5"});
  const std::vector<double> whole = train_on(1, train("one", same));
  const auto found = train_on(2, train("two", joined(same, pipeline(2, "Interleaved1F1B"))));
  ASSERT_EQ(found.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(found[i], whole[i], 1e-6 * whole[i]) << i;
  expect_equal_models("one", "two");
  for (const std::string name : {"loss/load_balance", "moe/load_max_over_mean"}) {
    EXPECT_EQ(read_metrics(path("one/metrics.jsonl"), name).values.size(), 3u) << name;
    const std::vector<double> a = read_metrics(path("one/metrics.jsonl"), name).values,
                              b = read_metrics(path("two/metrics.jsonl"), name).values;
    ASSERT_EQ(a.size(), b.size()) << name;
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-6 * a[i]) << name;
  }
}

// Two ranks have the tied weight, or one rank twice: it counts once in the norm that clips, is one
// tensor of a checkpoint, and stays equal wherever it is.
TEST_F(PipelineRunTest, ATiedWeightCountsOnceAndStaysEqual) {
  const Words same = joined(of_step(4), {"--training.max_norm", "0.5"});
  const std::vector<double> whole = train_on(1, gpt2("one", same));
  for (const std::string schedule : {"1F1B", "ZBVZeroBubble"}) {
    SCOPED_TRACE(schedule);
    const Words mesh =
        joined(pipeline(2, schedule), {"--parallelism.data_parallel_shard_degree", "2"});
    (void)train_on(4, gpt2(schedule, joined(joined(same, {"--training.steps", "2"}), mesh)));
    const auto found = train_on(4, gpt2(schedule, joined(same, mesh)));
    ASSERT_EQ(found.size(), whole.size());
    for (size_t i = 0; i < whole.size(); ++i)
      EXPECT_NEAR(found[i], whole[i], 1e-5 * (1 + whole[i])) << i;
  }
}

// In f64 a pipeline's steps are those of one rank but for the last digits, though the gradients of
// the two uses of the weight are added after the last micro-batch.
TEST_F(PipelineRunTest, ATiedWeightIsThatOfOneRank) {
  const Words same =
      joined(of_step(3), {"--training.dtype", "float64", "--training.mixed_precision_param",
                          "float64", "--optimizer.eps", "1e-4", "--training.max_norm", "0.5",
                          "--checkpoint.enable", "false"});
  (void)train_on(1, gpt2("one", same));
  const Session session;
  const auto read = [&](const std::string& dump) {
    return io::SafetensorsFile(path(dump + "/model.safetensors")).read_all();
  };
  const auto whole = read("one");
  for (const auto& [degree, schedule] : {std::pair(2, "1F1B"),
                                         {4, "GPipe"},
                                         {2, "LoopedBFS"},
                                         {2, "Interleaved1F1B"},
                                         {2, "ZBVZeroBubble"}}) {
    const std::string dump = concat(schedule, degree);
    (void)train_on(degree, gpt2(dump, joined(same, pipeline(degree, schedule))));
    const auto found = read(dump);
    ASSERT_EQ(found.size(), whole.size());
    for (size_t i = 0; i < whole.size(); ++i) {
      ASSERT_EQ(found[i].name, whole[i].name);
      ASSERT_EQ(found[i].tensor.dtype(), DType::f64);
      const auto a = found[i].tensor.values(), b = whole[i].tensor.values();
      for (size_t j = 0; j < b.size(); ++j)
        EXPECT_NEAR(a[j], b[j], 1e-12) << dump << ' ' << whole[i].name;
    }
  }
}

TEST_F(PipelineRunTest, ValidatesAndSamplesBetweenSteps) {
  const Words same =
      joined(of_step(3), {"--validation.enable", "--validation.dataset_path", path("text.txt"),
                          "--validation.freq", "1", "--validation.steps", "2",
                          "--validation.local_batch_size", "3", "--validation.seq_len", "12",
                          "--sample.tokens", "6", "--checkpoint.enable", "false"});
  (void)train_on(1, train("one", same));
  const std::string alone = out_.str();
  (void)train_on(2, train("two", joined(same, pipeline(2, "Interleaved1F1B"))));
  const std::string piped = out_.str();
  const auto from = [](const std::string& text, const std::string& word) {
    return text.substr(std::min(text.size(), text.find(word)));
  };
  EXPECT_EQ(read_metrics(path("one/metrics.jsonl"), "validation_loss").values,
            read_metrics(path("two/metrics.jsonl"), "validation_loss").values);
  EXPECT_EQ(read_metrics(path("two/metrics.jsonl"), "validation_loss").values.size(), 3u);
  EXPECT_EQ(from(piped, "greedy"), from(alone, "greedy"));
  EXPECT_NE(from(piped, "greedy"), "");
}

TEST_F(PipelineRunTest, StartsFromTheModelOfAnotherRun) {
  (void)train_on(1, train("first", joined(of_step(2), {"--checkpoint.enable", "false"})));
  const Words from_it = joined(
      of_step(1), {"--checkpoint.initial_load_path", path("first"), "--training.max_norm", "0.5"});
  const std::vector<double> whole = train_on(1, train("one", from_it));
  const auto found = train_on(2, train("two", joined(from_it, pipeline(2, "1F1B"))));
  EXPECT_EQ(found[0], whole[0]);
}

TEST_F(PipelineRunTest, TrainsByTheScheduleOfAFile) {
  EXPECT_EQ(run({"schedule", "--name", "GPipe", "--ranks", "2", "--micro_batches", "8", "--out",
                 path("own.csv")}),
            0);
  const Words same =
      joined(of_step(2), {"--checkpoint.enable", "false", "--training.max_norm", "0.5"});
  const std::vector<double> whole = train_on(1, train("one", same));
  const Words by_file = joined(pipeline(2, "1F1B"),
                               {"--parallelism.pipeline_parallel_schedule_csv", path("own.csv")});
  EXPECT_EQ(train_on(2, train("two", joined(same, by_file)))[0], whole[0]);
  const auto fault_of = [&](const std::string& csv) {
    io::write_file_atomically(path("wrong.csv"), csv);
    const Config c =
        config("bad", joined(joined(of_step(2), pipeline(2, "1F1B")),
                             {"--training.global_batch_size", "1",
                              "--parallelism.pipeline_parallel_schedule_csv", path("wrong.csv")}));
    const std::vector<std::string> found = faults(c, 2);
    return found.empty() ? std::string() : found[0];
  };
  const std::string field = "[--parallelism.pipeline_parallel_schedule_csv] ";
  EXPECT_EQ(fault_of("0F0,1F0,1B0,0B0\n,\n"), field + "rank 1 has no stage");
  EXPECT_EQ(fault_of("0F0,0I0\n1F0,1B0\n,0W0\n").substr(0, field.size()), field);
  EXPECT_EQ(fault_of("0F0,0B0\n1F0,1I0,1W0\n"), "");
}

TEST_F(PipelineRunTest, EvaluatesAndGeneratesOnPipelines) {
  (void)train_on(1, train("one", of_step(3)));
  const auto on = [&](const Words& command, int degree) {
    EXPECT_EQ(
        run(joined(command, {"--checkpoint", path("one"), "--ranks", std::to_string(degree),
                             "--parallelism.pipeline_parallel_degree", std::to_string(degree)})),
        0)
        << err_.str();
    return out_.str();
  };
  for (const Words& command : {Words{"generate", "--prompt", "the quick", "--tokens", "8"},
                               Words{"eval", "--dataset_path", path("text.txt"), "--steps", "3"}}) {
    const std::string whole = on(command, 1);
    EXPECT_EQ(on(command, 2), whole);
    EXPECT_EQ(on(command, 4), whole);
  }
}

// An event for each action, by its name in the schedule.
TEST_F(PipelineRunTest, TracesShowActions) {
  const Words profiled{"--profiler.enable_profiling", "--profiler.profile_freq", "2",
                       "--profiler.profiler_warmup", "0"};
  (void)train_on(2, train("two", joined(of_step(2), joined(pipeline(2, "1F1B"), profiled))));
  TESSERA_EXPECT_HOLDS(out_.str(), "pipeline rank 1: memory at its peak");
  for (const int rank : {0, 1}) {
    const std::string trace =
        io::read_file(path(concat("two/profiling/traces/iteration_2/rank", rank, "_trace.json")));
    for (int micro_batch = 0; micro_batch < 8; ++micro_batch) {
      for (const char kind : {'F', 'B'})
        TESSERA_EXPECT_HOLDS(trace, concat("\"name\":\"", rank, kind, micro_batch, '"'));
    }
    TESSERA_EXPECT_HOLDS(trace, rank == 0 ? "\"0SEND_F7\"" : "\"1RECV_F7\"");
  }
  EXPECT_EQ(run({"schedule", "--from", path("two")}), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "stages 2, ranks 2, micro-batches 8, a step takes ");
  TESSERA_EXPECT_HOLDS(out_.str(), "measured: ");
  EXPECT_EQ(run({"schedule", "--from", path("two"), "--name", "GPipe,InterleavedZeroBubble",
                 "--svg", path("two.svg")}),
            0)
      << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "measured: ");
  for (const char* name : {"GPipe", "InterleavedZeroBubble"}) {
    TESSERA_EXPECT_HOLDS(out_.str(), concat('\n', name, ": stages 2, ranks 2, micro-batches 8, "));
    TESSERA_EXPECT_HOLDS(io::read_file(path("two.svg")), concat('>', name, '<'));
  }
  EXPECT_EQ(run({"schedule", "--from", path("two"), "--name", "ZBVZeroBubble"}), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "exactly 2 stages per rank");
  (void)train_on(1, train("one", of_step(1)));
  EXPECT_EQ(run({"schedule", "--from", path("two"), "--ranks", "2", "--forward", "1"}), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "[--ranks] is that of the run of --from: leave it out");
  TESSERA_EXPECT_HOLDS(err_.str(), "[--forward] is");
  EXPECT_EQ(run({"schedule", "--from", path("one")}), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "one has no traces: give a run");
}

TEST_F(PipelineRunTest, GradientsOfBackwardsInTwoPartsAreMeasured) {
  (void)train_on(2, train("parts", joined(of_step(2), pipeline(2, "InterleavedZeroBubble"))));
  const size_t of_rank = out_.str().find("pipeline rank 1: memory at its peak");
  ASSERT_NE(of_rank, std::string::npos) << out_.str();
  EXPECT_EQ(out_.str().find("gradients 0 B after backward", of_rank), std::string::npos);
}

TEST_F(PipelineRunTest, ANonFiniteValueIsNamedByItsPlaceInTheSchedule) {
  const Config c = config("hot", joined(of_step(2), pipeline(2, "1F1B")));
  const auto overflow = [&](World&) {
    Trainer trainer(c);
    for (const auto& p : nn::named_parameters(trainer.model())) {
      const NoGrad guard;
      if (p.name == "layers.3.feed_forward.w1.weight" ||
          p.name == "layers.3.feed_forward.w3.weight")
        nn::copy_values(p.tensor, full(p.tensor.shape(), 1e20));
    }
    (void)trainer.step();
  };
  TESSERA_EXPECT_HOLDS(test::error_of([&] { run_ranks(2, overflow); }),
                       "first made by op swiglu in module layers.3.feed_forward (1F0 of "
                       "the schedule) on rank 1");
}

TEST_F(PipelineRunTest, WhatDoesNotFitIsSaidBeforeARun) {
  const auto faults_with = [&](const Words& more, int ranks = 2) {
    const Config c = config("bad", joined(of_step(2), joined(pipeline(2, "1F1B"), more)));
    return faults(c, ranks);
  };
  EXPECT_TRUE(faults_with({}).empty());
  const std::vector<std::pair<Words, std::string>> wrong{
      {{"--parallelism.pipeline_parallel_degree", "3"},
       "[--parallelism.pipeline_parallel_degree] 3 does not divide the 2 ranks: give a degree that "
       "does, or start another number of ranks"},
      {{"--parallelism.pipeline_parallel_microbatch_size", "3"},
       "[--parallelism.pipeline_parallel_microbatch_size] 3 x 1 rank = 3 does not divide the 8 "
       "rows of a step (--training.global_batch_size)"},
      {{"--parallelism.module_fqns_per_model_part", "tok_embeddings layers.0,norm output"},
       "[--parallelism.module_fqns_per_model_part] layers.1 is in no stage"},
      {{"--parallelism.module_fqns_per_model_part",
        "tok_embeddings layers.0 layers.1 layers.2 layers.3,layers.3 norm output"},
       "[--parallelism.module_fqns_per_model_part] layers.3 is in two stages, or twice in one"},
      {{"--parallelism.pipeline_parallel_layers_per_stage", "1", "--model.n_layers", "5"},
       "[--parallelism.pipeline_parallel_layers_per_stage] 1 of 5 layers, with embedding and head "
       "counted, are 5 stages, not the same number on each of 2 ranks: give 3 for one stage a "
       "rank"},
  };
  for (const auto& [words, fault] : wrong) {
    const std::vector<std::string> found = faults_with(words);
    EXPECT_EQ(found, std::vector{fault});
  }
}

}  // namespace
}  // namespace tessera::train
