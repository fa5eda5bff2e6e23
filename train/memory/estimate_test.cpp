// SPDX-License-Identifier: Apache-2.0
// Estimates against runs: the allocator's peak of a rank, which does not depend on the machine's
// load.
#include "tessera/train/memory/estimate.h"

#include "tessera/core/context.h"
#include "tessera/dist/launch/run.h"
#include "tessera/nn/optim/sgd.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/memory_formula.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/run/trainer.h"

#include <algorithm>
#include <map>
#include <mutex>

namespace tessera::train {
namespace {

class MemoryCheck : public test::FolderTest {
 protected:
  void SetUp() override { (void)put("text.txt", fox_text(200)); }

  [[nodiscard]] Config config(const Words& more = {}) const {
    const Words words{"--dataloader.path",
                      folder_ + "/text.txt",
                      "--dump_folder",
                      folder_ + "/run",
                      "--threads",
                      "1",
                      "--training.steps",
                      "2",
                      "--training.local_batch_size",
                      "3",
                      "--training.seq_len",
                      "65",
                      "--sample.tokens",
                      "0",
                      "--metrics.measure_ceiling",
                      "false"};
    return parse_config(joined(joined(words, tiny_model()), more));
  }
  // The peak of each rank's tensors in two steps.
  [[nodiscard]] std::vector<int64_t> peaks_of(const Config& config, int ranks) const {
    std::filesystem::remove_all(folder_ + "/run");
    std::vector<int64_t> peaks(static_cast<size_t>(ranks));
    run_ranks(
        ranks,
        [&](World& world) {
          Trainer trainer(config);
          (void)trainer.step();
          (void)trainer.step();
          peaks[static_cast<size_t>(world.rank())] =
              Context::current().allocator(kCpu)->stats().peak;
        },
        world_options(config));
    return peaks;
  }
  [[nodiscard]] int64_t peak_of(const Config& config, int ranks) const {
    return peaks_of(config, ranks)[0];
  }
  void expect_near(const Words& more, int ranks = 1) const {
    const Config c = config(more);
    const auto actual = static_cast<double>(peak_of(c, ranks));
    const MemoryEstimate e = estimate_memory(c, ranks);
    EXPECT_GT(static_cast<double>(e.counted), 0.8 * actual)
        << concat(more.size()) << memory_table(e);
    EXPECT_LT(static_cast<double>(e.counted), 1.25 * actual) << memory_table(e);
    int64_t sum = 0;
    for (const auto& part : e.parts) {
      EXPECT_GE(part.bytes, 0) << part.name;
      sum += part.bytes;
    }
    EXPECT_EQ(sum, e.total);
  }
};

TEST_F(MemoryCheck, TheEstimateIsNearThePeakOfARun) { expect_near({}); }
TEST_F(MemoryCheck, TheEstimateFollowsMixedPrecision) {
  expect_near({"--training.mixed_precision_param", "bfloat16"});
}
TEST_F(MemoryCheck, TheEstimateFollowsRecompute) {
  expect_near({"--activation_checkpoint.mode", "full"});
  expect_near({"--activation_checkpoint.mode", "selective"});
}
TEST_F(MemoryCheck, TheEstimateFollowsMicroBatchesAndPacking) {
  expect_near({"--training.global_batch_size", "9", "--dataloader.packing", "concat"});
}
TEST_F(MemoryCheck, TheEstimateIsOfOneRankOfSeveral) {
  expect_near({}, 2);
  const Words hybrid{"--parallelism.data_parallel_replicate_degree", "2"};
  expect_near(joined(hybrid, {"--training.mixed_precision_param", "bfloat16",
                              "--activation_checkpoint.mode", "full"}),
              4);
  expect_near({"--parallelism.fsdp_reshard_after_forward", "2"}, 4);
  const Words cut{"--parallelism.context_parallel_degree", "2"};
  expect_near(cut, 4);
  expect_near(joined(cut, {"--parallelism.context_parallel_rotate_method", "alltoall",
                           "--parallelism.context_parallel_load_balancer", "document_headtail"}),
              2);
}
// Of each rank, by the same schedule.
TEST_F(MemoryCheck, TheEstimateRunsTheScheduleOfAPipeline) {
  const Words model{"--model.dim",
                    "128",
                    "--model.n_layers",
                    "8",
                    "--model.vocab_size",
                    "1000",
                    "--training.seq_len",
                    "128",
                    "--training.local_batch_size",
                    "16",
                    "--parallelism.pipeline_parallel_microbatch_size",
                    "2",
                    "--parallelism.pipeline_parallel_degree",
                    "2"};
  for (const char* const schedule : {"GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble",
                                     "ZBVZeroBubble", "DualPipeV"}) {
    const Config c = config(joined(model, {"--parallelism.pipeline_parallel_schedule", schedule}));
    const std::vector<int64_t> peaks = peaks_of(c, 2);
    const MemoryEstimate e = estimate_memory(c, 2);
    ASSERT_EQ(e.of_pipeline_ranks.size(), 2u);
    EXPECT_EQ(e.counted, std::ranges::max(e.of_pipeline_ranks)) << schedule;
    EXPECT_EQ(e.counted, e.of_pipeline_ranks[static_cast<size_t>(e.pipeline_rank)]);
    for (size_t rank = 0; rank < 2; ++rank) {
      const double off =
          static_cast<double>(e.of_pipeline_ranks[rank]) / static_cast<double>(peaks[rank]) - 1;
      std::cout << schedule << ", rank " << rank << ": " << off << '\n';
      EXPECT_NEAR(off, 0, 0.05) << schedule << ", rank " << rank << '\n' << memory_table(e);
    }
  }
}

TEST_F(MemoryCheck, ValidationOfAPipelineIsCounted) {
  const auto counted = [&](const char* rows) {
    return estimate_memory(config({"--parallelism.pipeline_parallel_degree", "2",
                                   "--validation.enable", "--validation.dataset_path",
                                   folder_ + "/text.txt", "--validation.local_batch_size", rows}),
                           2)
        .counted;
  };
  EXPECT_GT(counted("3000"), 10 * counted("1"));
  // Of a wide model a row of it is less than a step.
  const auto of_wide = [&](const Words& more) {
    const Words wide{"--parallelism.pipeline_parallel_degree",
                     "2",
                     "--model.vocab_size",
                     "20000",
                     "--training.seq_len",
                     "16"};
    return estimate_memory(config(joined(wide, more)), 2).counted;
  };
  EXPECT_EQ(of_wide({"--validation.enable", "--validation.dataset_path", folder_ + "/text.txt",
                     "--validation.local_batch_size", "1"}),
            of_wide({}));
}

TEST_F(MemoryCheck, TheEstimateIsOfAnyFamily) {
  Config c = recipe("gpt2_debugmodel");
  c.training.local_batch_size = 1;
  c.training.seq_len = 63;
  c.dataloader.path = folder_ + "/text.txt";
  c.dump_folder = folder_ + "/run";
  c.metrics.measure_ceiling = false;
  c.threads = 1;
  const auto actual = static_cast<double>(peak_of(c, 1));
  const auto counted = static_cast<double>(estimate_memory(c, 1).counted);
  EXPECT_GT(counted, 0.8 * actual);
  EXPECT_LT(counted, 1.25 * actual);
}

TEST_F(MemoryCheck, ATokenOfAFineTuningSetIsAnIdAndAMark) {
  const std::string line = R"({"prompt": "which?", "completion": "red"})"
                           "\n";
  const auto total = [&](const std::string& lines) {
    const std::string set = put("set.jsonl", lines);
    return estimate_memory(
               config({"--dataloader.path", set, "--dataloader.format", "prompt_completion",
                       "--validation.enable", "--validation.dataset_path", set}),
               1)
        .total;
  };
  EXPECT_EQ(total(line + line) - total(line), 2 * 5 * std::ssize(line));
}

TEST_F(MemoryCheck, AModelFarBeyondTheMachineIsEstimatedWithoutItsMemory) {
  Config c = recipe("llama3_8b");
  const MemoryEstimate e = estimate_memory(c, 8);
  // 8,030,261,248 parameters of 4 bytes, and two moments each, sharded over 8 ranks.
  constexpr int64_t kParameters = 8'030'261'248 * 4 / 8;
  for (const auto& part : e.parts) {
    if (part.name == "parameters") {
      EXPECT_EQ(part.bytes, kParameters);
    }
    if (part.name == "optimizer states") {
      EXPECT_EQ(part.bytes, 2 * kParameters);
    }
  }
  EXPECT_GT(e.counted, 4 * kParameters);
}

TEST_F(MemoryCheck, TheEstimateByKindIsThatOfTheFormula) {
  const test::MemorySizes s{.ranks = 4,
                            .layers = 4,
                            .dim = 256,
                            .heads = 8,
                            .hidden = 512,
                            .vocabulary = 256,
                            .length = 16};
  const test::MemoryFormula f(s);
  const auto field = [](const char* name, int64_t value) {
    return Words{concat("--model.", name), std::to_string(value)};
  };
  Words words{"--training.local_batch_size",
              "1",
              "--training.mixed_precision_param",
              "float32",
              "--training.seq_len",
              std::to_string(s.length)};
  for (const Words& more :
       {field("dim", s.dim), field("n_layers", s.layers), field("n_heads", s.heads),
        field("n_kv_heads", s.heads), field("ffn_dim", s.hidden), field("vocab_size", s.vocabulary),
        field("max_seq_len", s.length)})
    words = joined(words, more);
  const Config c = config(words);
  const MemoryEstimate e = estimate_memory(c, s.ranks);
  const auto part = [&](std::string_view name) {
    const auto found = std::ranges::find(e.parts, name, &MemoryEstimate::Part::name);
    return found == e.parts.end() ? -1 : found->bytes;
  };
  const auto expect_within = [](int64_t counted, int64_t formula, const char* what) {
    EXPECT_NEAR(static_cast<double>(counted), static_cast<double>(formula),
                0.05 * static_cast<double>(formula))
        << what;
  };
  expect_within(part("parameters"), f.parameters(), "parameters");
  expect_within(part("optimizer states"), 2 * f.parameters(), "optimizer states");
  expect_within(part("activations"), f.activations(), "activations");
  expect_within(e.counted, 3 * f.parameters() + f.backward(), "the peak");
  // At the peak of backward a layer is gathered, and the one below it perhaps.
  EXPECT_GE(part("gathered or cast parameters"), f.block);
  EXPECT_LE(part("gathered or cast parameters"), 2 * f.block);
  EXPECT_GE(part("gradients"), f.last / f.ranks);
  EXPECT_LE(part("gradients"), f.parameters());
}

// What is kept whole after forward is no activation, and can be given back.
TEST_F(MemoryCheck, StatesAreOfTheOptimizerThatRuns) {
  const Config c = config();
  const auto of = [&](const OptimizerFactory& make) {
    const MemoryEstimate e = estimate_memory(c, 1, make);
    std::map<std::string, int64_t> bytes{{"counted", e.counted}};
    for (const auto& part : e.parts) bytes[part.name] = part.bytes;
    return bytes;
  };
  const auto sgd = [](double momentum) {
    return [momentum](const std::vector<nn::NamedParameter>& named) {
      std::vector<Tensor> all;
      for (const nn::NamedParameter& p : named) all.push_back(p.tensor);
      return std::make_unique<optim::SGD>(all, optim::SGDOptions{.momentum = momentum});
    };
  };
  auto adamw = of({}), plain = of(sgd(0)), heavy = of(sgd(0.9));
  const int64_t parameters = adamw["parameters"];
  EXPECT_EQ(plain["parameters"], parameters);
  EXPECT_EQ(adamw["optimizer states"], 2 * parameters);
  EXPECT_EQ(heavy["optimizer states"], parameters);
  EXPECT_EQ(plain["optimizer states"], 0);
  for (const int64_t less :
       {adamw["counted"] - heavy["counted"], heavy["counted"] - plain["counted"]}) {
    EXPECT_GE(less, parameters);  // in whole blocks of the allocator
    EXPECT_LT(less, parameters + parameters / 10);
  }
}

TEST_F(MemoryCheck, GatheredParametersAreAPartOfTheirOwn) {
  const Words never{"--parallelism.fsdp_reshard_after_forward", "never"},
      always{"--parallelism.fsdp_reshard_after_forward", "always"};
  const auto part = [&](const Words& words, std::string_view name) {
    const MemoryEstimate e = estimate_memory(config(words), 4);
    return std::ranges::find(e.parts, name, &MemoryEstimate::Part::name)->bytes;
  };
  EXPECT_GT(part(never, "gathered or cast parameters"),
            2 * part(always, "gathered or cast parameters"));
  const auto kept = static_cast<double>(part(always, "activations"));
  EXPECT_NEAR(static_cast<double>(part(never, "activations")), kept, 0.05 * kept);
  const auto refusal = [&](const Words& words) {
    const Config c = config(joined(words, {"--training.local_batch_size", "1", "--training.seq_len",
                                           "1", "--model.dim", "1024", "--model.n_layers", "8"}));
    return test::error_of<StorageError>(
        [&] { (void)check_memory(c, {.all = 4, .of_host = 4}, {.host = 1, .host_source = "x"}); });
  };
  TESSERA_EXPECT_HOLDS(refusal(never), "--parallelism.fsdp_reshard_after_forward always (");
  TESSERA_EXPECT_HOLDS(refusal({"--parallelism.data_parallel_replicate_degree", "4"}),
                       "--parallelism.data_parallel_replicate_degree 1 "
                       "--parallelism.data_parallel_shard_degree -1 (");
}

// Short sequences, so that little is beside what is sharded.
TEST_F(MemoryCheck, MoreRanksToShardOverNeedLessEach) {
  Config c = recipe("llama3_8b");
  c.training.local_batch_size = 1;
  c.training.seq_len = 64;
  // Parameters, gradients and two moments; then whole embedding, head and their gradients.
  constexpr int64_t kSharded = 8'030'261'248 * 4 * 4, kWhole = int64_t{128'256} * 4096 * 12;
  std::vector<int64_t> counted;
  for (const int ranks : {8, 32, 128}) {
    counted.push_back(estimate_memory(c, ranks).counted);
    EXPECT_GT(counted.back(), kSharded / ranks) << ranks;
    EXPECT_LT(counted.back(), kSharded / ranks + kWhole) << ranks;
  }
  // Replicas share nothing.
  c.parallelism.data_parallel_replicate_degree = 4;
  EXPECT_NEAR(static_cast<double>(estimate_memory(c, 32).counted), static_cast<double>(counted[0]),
              0.05 * static_cast<double>(counted[0]));
}

// Each op of forward is a new peak; what each consists of would be a walk over all of the model.
TEST_F(MemoryCheck, TheModelIsNotWalkedAtEveryOp) {
  for (const char* layers : {"2", "24"}) {
    const MemoryEstimate e = estimate_memory(config({"--model.n_layers", layers}), 2);
    EXPECT_EQ(e.walks, 1) << layers;
    const auto part = [&](std::string_view name) {
      return std::ranges::find(e.parts, name, &MemoryEstimate::Part::name)->bytes;
    };
    EXPECT_GT(part("gradients") + part("gathered or cast parameters"), 0) << layers;
  }
}

TEST_F(MemoryCheck, TrainingThatDoesNotFitIsRefusedInASentence) {
  const Config c = config();
  const MemoryEstimate e = estimate_memory(c, 1);
  const FreeMemory little{.host = e.counted / 2, .host_source = "a cgroup limit of 9.0 MiB"};
  try {
    (void)check_memory(c, {}, little);
    FAIL() << "it fits";
  } catch (const StorageError& error) {
    const std::string text = error.what();
    for (const std::string& part :
         {std::string("[memory] training needs about "), byte_count(e.total),
          byte_count(e.counted / 2), std::string(" are free (a cgroup limit of 9.0 MiB)"),
          e.parts[0].name, std::string("--memory.check false trains anyway")})
      EXPECT_NE(text.find(part), text.npos) << text;
    EXPECT_EQ(text.find('\n'), text.npos);
  }
}

TEST_F(MemoryCheck, WhatIsNearTheLimitIsAWarning) {
  const Config c = config();
  const MemoryEstimate e = estimate_memory(c, 1);
  const FreeMemory enough{.host = e.total, .host_source = "x"},
      near{.host = e.total - 1, .host_source = "x"};
  EXPECT_EQ(check_memory(c, {}, enough), "");
  EXPECT_EQ(check_memory(c, {}, near).find("warning: training needs about "), 0u);
  EXPECT_EQ(check_memory(c, {}, {}), "");  // unknown
}

TEST_F(MemoryCheck, RanksOfAHostAddUp) {
  const Config c = config();
  const MemoryEstimate e = estimate_memory(c, 4);
  const HostRanks two{.all = 4, .of_host = 2};
  EXPECT_EQ(check_memory(c, two, {.host = 2 * e.total, .host_source = "x"}), "");
  EXPECT_THROW((void)check_memory(c, two, {.host = 2 * e.counted - 2, .host_source = "x"}),
               StorageError);
  // A limit of the process counts its own ranks alone.
  EXPECT_EQ(check_memory(c, two, {.process = e.total, .process_source = "x"}), "");
  EXPECT_THROW((void)check_memory(c, two, {.process = e.counted - 1, .process_source = "x"}),
               StorageError);
}

TEST_F(MemoryCheck, TheEstimateSaysWhetherItFits) {
  const MemoryEstimate e = estimate_memory(config(), 2);
  const HostRanks two{.all = 2, .of_host = 2};
  const auto line = [&](const FreeMemory& free) { return fit_line(e, two, free); };
  const std::string both = byte_count(2 * e.total), of = " of " + both + " (x)";
  EXPECT_EQ(line({.host = 2 * e.total, .host_source = "x"}), "fits: " + both + of);
  EXPECT_EQ(line({.host = 2 * e.total - 1, .host_source = "x"}), "does not fit: " + both + of);
  EXPECT_EQ(line({.device = e.counted - 1, .device_source = "cuda:0"}).find("does not fit: "), 0u);
  EXPECT_EQ(line({}).find("it is not known whether this fits"), 0u);
}

TEST_F(MemoryCheck, TheTableIsPrintedAlone) {
  std::ostringstream out, err;
  const Words words{"train",         "--estimate",     "--recipe", "llama3_debugmodel",
                    "--dump_folder", folder_ + "/none"};
  EXPECT_EQ(run_cli(words, out, err), 0) << err.str();
  for (const char* part : {"parameters ", "optimizer states ", "activations ", "total ",
                           "1 rank on this host: ", "fits: "})
    EXPECT_NE(out.str().find(part), std::string::npos) << out.str();
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/none"));
  EXPECT_EQ(out.str().find("step:"), std::string::npos);
}

}  // namespace
}  // namespace tessera::train
