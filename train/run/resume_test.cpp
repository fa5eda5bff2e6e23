// SPDX-License-Identifier: Apache-2.0
// Runs that stop and go on: the bits are those of a run that never stopped.
#include "tessera/core/process.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/parameter_of.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/checkpoint/checkpoint.h"
#include "tessera/train/run/trainer.h"

#include <algorithm>
#include <map>
#include <random>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

class ResumeTest : public TinyRunTest {
 protected:
  // Sizes and checksums of all tensors of a step: equal sums are equal bits.
  [[nodiscard]] Manifest manifest(const std::string& dump, int64_t step) const {
    const std::string file = path(concat(dump, "/checkpoint/step-", step, "/manifest.json"));
    return parse_manifest(io::read_file(file), file);
  }
  void expect_equal_bits(const std::string& a, const std::string& b, int64_t step) const {
    const Manifest x = manifest(a, step), y = manifest(b, step);
    EXPECT_EQ(x.progress, y.progress);
    EXPECT_TRUE(x.has_optimizer());
    EXPECT_EQ(x.files, y.files);
    for (const auto& f : x.files) {
      const auto in = concat("/checkpoint/step-", step, '/', f.name);
      EXPECT_EQ(io::read_file(path(a + in)), io::read_file(path(b + in)));
    }
  }
  // Trains to `step` on so many ranks and saves there.
  void train_to(int64_t step, int ranks, const Config& config) {
    run_ranks(ranks, [&](World&) {
      Trainer trainer(config);
      while (trainer.records().empty() || trainer.records().back().step < step) trainer.step();
      trainer.save();
    });
  }
  std::string error_of(const Words& words, int status = 1) {
    EXPECT_EQ(run(words), status) << out_.str();
    return err_.str();
  }
};

TEST_F(ResumeTest, TenAndTenStepsAreTwenty) {
  const std::vector<Words> settings{
      {},
      {"--lr_scheduler.decay_ratio", "0.5", "--lr_scheduler.decay_type", "cosine",
       "--training.global_batch_size", "8"},
      {"--training.global_batch_size", "4", "--training.dtype", "bfloat16",
       "--training.mixed_precision_param", "bfloat16", "--optimizer.state_dtype", "bfloat16",
       "--activation_checkpoint.mode", "full", "--optimizer.param_groups", "norm weight_decay=0"}};
  for (const int ranks : {1, 2}) {
    for (size_t i = 0; i < settings.size(); ++i) {
      const std::string straight = concat("straight", ranks, i),
                        stopped = concat("stopped", ranks, i);
      train_to(20, ranks, config(straight, settings[i]));
      train_to(10, ranks, config(stopped, settings[i]));
      train_to(20, ranks, config(stopped, settings[i]));
      expect_equal_bits(straight, stopped, 20);
    }
  }
}

// What had no gradient in some steps keeps its own count of them.
TEST_F(ResumeTest, AParameterThatSatOutAStepGoesOnAsItWas) {
  const auto steps = [&](const Config& config, int frozen, int all) {
    run_ranks(2, [&](World&) {
      Trainer trainer(config);
      Tensor weight = test::parameter_of(trainer.model(), "norm.weight");
      for (int i = 0; i < frozen + all; ++i) {
        weight.set_requires_grad(i >= frozen);
        trainer.step();
      }
      trainer.save();
    });
  };
  steps(config("straight"), 2, 4);
  steps(config("stopped"), 2, 2);
  const auto there = manifest("stopped", 4).optimizer;
  EXPECT_TRUE(there.contains("norm.weight.step"));
  EXPECT_FALSE(there.contains("output.weight.step"));
  steps(config("stopped"), 0, 2);
  expect_equal_bits("straight", "stopped", 6);
}

TEST_F(ResumeTest, TheCommandLineGoesOnFromTheLatest) {
  const Words every5{"--checkpoint.interval",
                     "5",
                     "--training.global_batch_size",
                     "4",
                     "--activation_checkpoint.mode",
                     "full",
                     "--validation.enable",
                     "--validation.dataset_path",
                     path("text.txt"),
                     "--validation.freq",
                     "4",
                     "--validation.steps",
                     "3"};
  constexpr size_t kLines = 20 + 6;  // steps, and validations after steps 1, 4, 8, 12, 16, 20
  ASSERT_EQ(run(train("straight", every5)), 0) << err_.str();
  EXPECT_NE(out_.str().find("/straight/checkpoint/step-20, "), std::string::npos) << out_.str();
  EXPECT_FALSE(fs::exists(path("straight/model.safetensors")));
  fs::copy(path("straight"), path("again"), fs::copy_options::recursive);
  fs::remove_all(path("again/checkpoint/step-20"));
  fs::remove_all(path("again/checkpoint/step-15/manifest.json"));
  ASSERT_EQ(run(train("again", every5)), 0) << err_.str();
  EXPECT_NE(out_.str().find("warning: skipped a checkpoint: "), std::string::npos);
  EXPECT_NE(out_.str().find("training resumes after step 10"), std::string::npos) << out_.str();
  expect_equal_bits("straight", "again", 20);
  // Metrics are those of one run; only the speed differs.
  const auto losses = [&](const std::string& dump) {
    std::vector<std::string> lines;
    std::istringstream text(io::read_file(path(dump + "/metrics.jsonl")));
    for (std::string line; std::getline(text, line);)
      lines.push_back(line.substr(0, line.find("\"tokens_per_second\"")));
    return lines;
  };
  EXPECT_EQ(losses("straight").size(), kLines);
  EXPECT_EQ(losses("straight"), losses("again"));
  // A finished run has nothing left to do.
  ASSERT_EQ(run(train("again", every5)), 0) << err_.str();
  EXPECT_NE(out_.str().find("training resumes after step 20"), std::string::npos);
  EXPECT_EQ(losses("again").size(), kLines);
}

TEST_F(ResumeTest, ALoadedStepMayBeAnEarlierOne) {
  const Words every5{"--checkpoint.interval", "5"};
  ASSERT_EQ(run(train("a", every5)), 0) << err_.str();
  const Manifest before = manifest("a", 20);
  Words back = every5;
  back.insert(back.end(), {"--checkpoint.load_step", "5"});
  ASSERT_EQ(run(train("a", back)), 0) << err_.str();
  EXPECT_NE(out_.str().find("also has later steps, up to step-20"), std::string::npos);
  EXPECT_EQ(manifest("a", 20).files, before.files);
  back.back() = "7";
  const std::string error = error_of(train("a", back), 2);
  EXPECT_NE(error.find("there is no step-7 in "), std::string::npos) << error;
  EXPECT_NE(error.find("it has step-5, step-10, step-15, step-20"), std::string::npos) << error;
}

// The same bits on any number of ranks that the rows divide: as far as the sums are the same.
TEST_F(ResumeTest, AnotherNumberOfRanksGoesOn) {
  train_to(10, 2, config("a", {"--training.local_batch_size", "1"}));
  run_ranks(1, [&](World&) {
    Trainer trainer(config("a", {"--training.local_batch_size", "2"}));
    EXPECT_EQ(trainer.step().step, 11);
  });
}

TEST_F(ResumeTest, TheLastSaveMayHoldTheModelAlone) {
  const Words last{"--checkpoint.last_save_model_only",
                   "true",
                   "--checkpoint.export_dtype",
                   "bfloat16",
                   "--training.steps",
                   "6",
                   "--checkpoint.interval",
                   "4"};
  ASSERT_EQ(run(train("a", last)), 0) << err_.str();
  const Manifest m = manifest("a", 6);
  EXPECT_FALSE(m.has_optimizer());
  EXPECT_EQ(m.model.begin()->second.dtype, DType::bf16);
  EXPECT_TRUE(manifest("a", 4).has_optimizer());
  // Text comes from it; training does not go on from it unasked.
  const Words generate{"generate", "--checkpoint",  path("a"), "--prompt", "the ", "--tokens",
                       "5",        "--temperature", "0"};
  EXPECT_EQ(run(generate), 0) << err_.str();
  Words longer = joined(last, {"--training.steps", "8"});
  EXPECT_NE(error_of(train("a", longer)).find("step-6 contains only the model, of step 6"),
            std::string::npos);
  longer.insert(longer.end(), {"--checkpoint.load_step", "4"});
  EXPECT_EQ(run(train("a", longer)), 0) << err_.str();
  EXPECT_NE(out_.str().find("configuration changed since "), std::string::npos) << out_.str();
  EXPECT_NE(out_.str().find("training.steps from 6 to 8"), std::string::npos) << out_.str();
}

TEST_F(ResumeTest, ACompleteRunKeepsItsConfiguration) {
  ASSERT_EQ(run(train("a", {"--training.steps", "5"})), 0) << err_.str();
  const std::string config = io::read_file(path("a/config.json"));
  for (const char* steps : {"5", "3"}) {
    EXPECT_EQ(run(train("a", {"--training.steps", steps})), 0) << err_.str();
    TESSERA_EXPECT_HOLDS(out_.str(), concat("nothing is left to train: 5 steps done, and "
                                            "training.steps is ",
                                            steps));
    EXPECT_EQ(io::read_file(path("a/config.json")), config);
  }
}

TEST_F(ResumeTest, AnotherCheckpointIsLoadedWithoutSavingToo) {
  ASSERT_EQ(run(train("a", {"--training.steps", "5"})), 0) << err_.str();
  const Words one{"--training.steps", "1", "--checkpoint.initial_load_path", path("a"),
                  "--checkpoint.enable"};
  std::string first;
  for (const char* saves : {"true", "false"}) {
    ASSERT_EQ(run(train(saves, joined(one, {saves}))), 0) << err_.str();
    TESSERA_EXPECT_HOLDS(out_.str(), "training starts from its model\n");
    const size_t step = out_.str().find("step:  1");
    const std::string loss = out_.str().substr(step, out_.str().find("memory", step) - step);
    EXPECT_EQ(first.empty() ? loss : first, loss);
    first = loss;
  }
  EXPECT_EQ(run(train("c", {"--checkpoint.initial_load_path", path("none"), "--checkpoint.enable",
                            "false"})),
            2);
  TESSERA_EXPECT_HOLDS(err_.str(), "none does not exist");
}

TEST_F(ResumeTest, ARunMayBeginWithAnothersCheckpoint) {
  ASSERT_EQ(run(train("a", {"--training.steps", "5"})), 0) << err_.str();
  const Words from_a{"--checkpoint.initial_load_path", path("a"), "--training.steps", "5"};
  run_ranks(1, [&](World&) {
    Trainer trainer(config("b", from_a));
    const CheckpointReader reader(CheckpointFolder(path("a/checkpoint")).folder_of(5));
    EXPECT_EQ(local(test::parameter_of(trainer.model(), "tok_embeddings.weight")).values(),
              reader.read("tok_embeddings.weight").values());
    EXPECT_EQ(trainer.step().step, 1);
    trainer.save();
  });
  run_ranks(1, [&](World&) {  // its own goes first from now on
    Trainer trainer(config("b", from_a));
    EXPECT_EQ(trainer.step().step, 2);
  });
  const Words whole =
      joined(from_a, {"--checkpoint.initial_load_model_only", "false", "--training.steps", "9"});
  run_ranks(1, [&](World&) {
    Trainer trainer(config("c", whole));
    EXPECT_EQ(trainer.step().step, 6);
  });
  EXPECT_NE(error_of(train("d", {"--checkpoint.initial_load_path", folder_}))
                .find("is neither a step's folder"),
            std::string::npos);
}

TEST_F(ResumeTest, PartsMayBeginAnew) {
  ASSERT_EQ(run(train("a", {"--training.steps", "5"})), 0) << err_.str();
  const auto progress_without = [&](const std::string& parts) {
    fs::remove_all(path("b"));
    fs::copy(path("a"), path("b"), fs::copy_options::recursive);
    Progress p;
    run_ranks(1, [&](World&) {
      Trainer trainer(config("b", {"--checkpoint.exclude_from_loading", parts}));
      trainer.step();
      trainer.save();
      const CheckpointReader reader(
          CheckpointFolder(path("b/checkpoint")).folder_of(trainer.records().back().step));
      p = reader.manifest().progress;
    });
    return p;
  };
  EXPECT_EQ(progress_without("optimizer"), (Progress{6, 1, 6, 12}));
  EXPECT_EQ(progress_without("lr_scheduler"), (Progress{6, 6, 1, 12}));
  EXPECT_EQ(progress_without("dataloader,optimizer"), (Progress{6, 1, 6, 2}));
  EXPECT_EQ(progress_without("train_state,lr_scheduler"), (Progress{1, 6, 1, 12}));
}

TEST_F(ResumeTest, OtherDataIsNoticed) {
  ASSERT_EQ(run(train("a", {"--training.steps", "2"})), 0) << err_.str();
  io::write_file_atomically(path("text.txt"),
                            io::read_file(path("text.txt")) + std::string(100, 'x'));
  ASSERT_EQ(run(train("a", {"--training.steps", "3"})), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "its order differs from here on");
}

// Of the same size: the number of windows, and so their order, is the same.
TEST_F(ResumeTest, ChangedDataIsNamed) {
  const auto to = [&](const char* steps) {
    return train("a", {"--training.steps", steps, "--lr_scheduler.total_steps", "9"});
  };
  ASSERT_EQ(run(to("2")), 0) << err_.str();
  std::string text = io::read_file(path("text.txt"));
  ASSERT_EQ(run(to("3")), 0) << err_.str();
  EXPECT_EQ(out_.str().find("warning: "), std::string::npos) << out_.str();
  text[text.size() / 2] ^= 1;
  (void)put("text.txt", text);
  ASSERT_EQ(run(to("4")), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(),
                       concat("warning: the data is not that of ", path("a/checkpoint/step-3"),
                              ": text.txt has the checksum "));
  // From then on the checkpoints are of the new data.
  ASSERT_EQ(run(to("5")), 0) << err_.str();
  EXPECT_EQ(out_.str().find("warning: "), std::string::npos) << out_.str();
}

TEST_F(ResumeTest, AnotherRouteOfMatmulsIsAWarningOrUnderDeterministicAnError) {
  const Isa isa = Process::get().isa();
  if (isa == Isa::baseline) return;  // there is no lower one to resume on
  ASSERT_EQ(run(train("a", {"--training.steps", "2"})), 0) << err_.str();
  const std::string before = manifest("a", 2).products;
  EXPECT_EQ(before, product_route());
  ASSERT_EQ(run(train("a", {"--training.steps", "3"})), 0) << err_.str();
  EXPECT_EQ(out_.str().find("warning: matmuls"), std::string::npos) << out_.str();
  Process::get().limit_isa(Isa::baseline);
  const std::string here = product_route();
  const std::string what = concat("matmuls of ", path("a/checkpoint/step-3"), " were computed by ",
                                  before, ", here they are by ", here);
  const std::string error =
      error_of(train("a", {"--training.steps", "4", "--debug.deterministic"}));
  EXPECT_EQ(run(train("a", {"--training.steps", "4", "--debug.deterministic",
                            "--debug.deterministic_warn_only"})),
            0)
      << err_.str();
  const std::string warned = out_.str();
  fs::remove_all(path("a/checkpoint/step-4"));
  EXPECT_EQ(run(train("a", {"--training.steps", "4"})), 0) << err_.str();
  Process::get().limit_isa(isa);
  TESSERA_EXPECT_HOLDS(error, concat("[checkpoint] ", what, ", so the run cannot continue"));
  const std::string warning =
      concat("warning: ", what, ": from here on, bits differ from those of an uninterrupted run");
  TESSERA_EXPECT_HOLDS(warned, warning);
  TESSERA_EXPECT_HOLDS(out_.str(), warning);
  EXPECT_EQ(manifest("a", 4).products, here);
}

TEST_F(ResumeTest, AnotherRunsModelAloneIsABeginning) {
  const Words one{"--training.steps", "1", "--checkpoint.enable", "false"};
  ASSERT_EQ(run(train("a", one)), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "weights: random, of debug.seed 7");
  const Words tuned{"train",         "--config",       path("a/config.json"),
                    "--dump_folder", path("b"),        "--checkpoint.initial_load_path",
                    path("a"),       "--optimizer.lr", "0"};
  for (const Words& more : {Words{}, {"--ranks", "2", "--overwrite"}}) {
    ASSERT_EQ(run(joined(tuned, more)), 0) << err_.str();
    TESSERA_EXPECT_HOLDS(out_.str(), "loaded " + path("a") + " in ");
    EXPECT_EQ(out_.str().find("weights: random"), std::string::npos) << out_.str();
    EXPECT_EQ(io::read_file(path("a/model.safetensors")),
              io::read_file(path("b/model.safetensors")));
  }
  EXPECT_EQ(run(joined(tuned, {"--overwrite", "--model.ffn_dim", "48"})), 1);
  TESSERA_EXPECT_HOLDS(err_.str(), path("a") + " does not fit this run: layers.0.feed_forward.w1");
  EXPECT_EQ(run(joined(tuned, {"--overwrite", "--checkpoint.initial_load_model_only", "false"})),
            2);
}

TEST_F(ResumeTest, AForeignCheckpointNamesFieldsAndThenSomeTensors) {
  ASSERT_EQ(run(train("a", {"--training.steps", "2"})), 0) << err_.str();
  const std::string error =
      error_of(train("a", {"--model.ffn_dim", "48", "--model.norm_eps", "1e-3"}));
  TESSERA_EXPECT_HOLDS(error,
                       " does not fit this run: model.ffn_dim is 64 there and 48 here; "
                       "model.norm_eps is 1e-05 there and 0.001 here; "
                       "layers.0.feed_forward.w1.weight is f32[64, 32], expected f32[48, 32]; ");
  TESSERA_EXPECT_HOLDS(error, "; and 15 more");
  EXPECT_EQ(std::ranges::count(error, '\n'), 1);
  const std::string layers = error_of(train("a", {"--model.n_layers", "3", "--ranks", "2"}));
  TESSERA_EXPECT_HOLDS(layers, "layers.2.attention.wq.weight is missing");
}

TEST_F(ResumeTest, GenerateReadsRunsAndSteps) {
  ASSERT_EQ(run(train("a", {"--checkpoint.interval", "10"})), 0) << err_.str();
  const auto text = [&](const std::string& from) {
    EXPECT_EQ(run({"generate", "--checkpoint", path(from), "--prompt", "the ", "--tokens", "9",
                   "--temperature", "0"}),
              0)
        << err_.str();
    return out_.str();
  };
  const std::string run_text = text("a");
  EXPECT_TRUE(run_text.starts_with("the "));
  EXPECT_EQ(text("a/checkpoint/step-20"), run_text);
  EXPECT_EQ(text("a/checkpoint"), run_text);
  const std::string earlier = text("a/checkpoint/step-10");
  EXPECT_TRUE(earlier.starts_with("the "));
  // The ranks find a damaged tensor, and take the step before.
  std::string bytes = io::read_file(path("a/checkpoint/step-20/rank-00000.safetensors"));
  for (size_t at = bytes.size() / 8; at < bytes.size(); at += 100) bytes[at] ^= 1;
  io::write_file_atomically(path("a/checkpoint/step-20/rank-00000.safetensors"), bytes);
  TESSERA_EXPECT_HOLDS(text("a"), "warning: skipped a checkpoint: [checkpoint] ");
  EXPECT_TRUE(out_.str().ends_with(earlier)) << out_.str();
  fs::remove(path("a/checkpoint/step-20/rank-00000.safetensors"));
  EXPECT_EQ(run({"generate", "--checkpoint", path("a/checkpoint/step-20")}), 1);
  fs::create_directory(path("new"));
  fs::copy(path("a/config.json"), path("new/config.json"));
  EXPECT_EQ(run({"generate", "--checkpoint", path("new")}), 1);
  TESSERA_EXPECT_HOLDS(err_.str(), "contains neither a checkpoint nor model.safetensors");
  EXPECT_NE(text("a").find("warning: skipped a checkpoint"), std::string::npos);
}

TEST_F(ResumeTest, AVocabularyOfWhichLittleIsTrainedGivesAWarning) {
  for (const auto& [rows, warned] : {std::pair{"2063", false}, {"2064", true}}) {
    EXPECT_EQ(run(train("a", {"--training.steps", "1", "--model.vocab_size", rows, "--overwrite"})),
              0)
        << err_.str();
    EXPECT_EQ(
        out_.str().find("warning: the tokenizer has 258 tokens, and model.vocab_size is 2,064"
                        ": most rows of the embedding and of the head are never trained; "
                        "name the tokenizer of the model as --hf_assets_path") != std::string::npos,
        warned)
        << out_.str();
  }
}

TEST_F(ResumeTest, ACheckpointCarriesItsTokenizer) {
  const auto make = [&](const std::string& name, const char* vocabulary, const std::string& from) {
    EXPECT_EQ(run({"tokenizer", "train", "--vocab_size", vocabulary, "--out", path(name), from}), 0)
        << err_.str();
    return path(name);
  };
  const std::string own = make("own", "260", path("text.txt"));
  const std::string other = make("other", "260", put("other.txt", "zz zz zz zz zz zz"));
  const std::string large = make("large", "300", path("text.txt"));
  const auto goes_on = [&](const char* steps, const std::string& tokenizer) {
    EXPECT_EQ(run(train("a", {"--training.steps", steps, "--hf_assets_path", tokenizer})), 0)
        << err_.str();
    return out_.str();
  };
  (void)goes_on("3", own);
  TESSERA_EXPECT_HOLDS(error_of(train("a", {"--training.steps", "4"})),
                       "step-3 knows other tokens than bytes: give its tokenizer as "
                       "--hf_assets_path, or --hf_assets_path ");
  const auto evaluated = [&](const Words& more = {}) {
    EXPECT_EQ(run(joined({"eval", "--checkpoint", path("a"), "--steps", "2"}, more)), 0)
        << err_.str();
    return out_.str();
  };
  const std::string before = evaluated();
  fs::rename(own, path("moved"));
  EXPECT_EQ(evaluated(), before);
  EXPECT_EQ(evaluated({"--hf_assets_path", path("moved")}), before);
  EXPECT_NE(evaluated({"--hf_assets_path", other}), before);
  EXPECT_EQ(run({"generate", "--checkpoint", path("a"), "--tokens", "3"}), 0) << err_.str();
  EXPECT_EQ(run({"generate", "--checkpoint", path("a"), "--hf_assets_path", large}), 2);
  TESSERA_EXPECT_HOLDS(err_.str(), "[--model.vocab_size] 260 is below the ");
  const std::string warning = "warning: the tokenizer is not that of ";
  EXPECT_EQ(goes_on("4", path("moved")).find(warning), std::string::npos);
  const std::string warned = goes_on("5", other);
  TESSERA_EXPECT_HOLDS(warned, warning);
  TESSERA_EXPECT_HOLDS(warned, "tokenizer.json differs");
}

TEST_F(ResumeTest, AnotherModelIsNotReadInTheStepOfADamagedOne) {
  for (const char* steps : {"1", "2"}) {
    const std::string run_of = concat("run", steps);
    ASSERT_EQ(
        run(train(run_of, {"--training.steps", steps, "--model.norm_eps", concat("1e-", steps)})),
        0)
        << err_.str();
  }
  fs::rename(path("run2/checkpoint/step-2"), path("run1/checkpoint/step-2"));
  const std::string data = path("run1/checkpoint/step-2/rank-00000.safetensors");
  std::string bytes = io::read_file(data);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  io::write_file_atomically(data, bytes);
  const std::string error = error_of({"generate", "--checkpoint", path("run1")});
  TESSERA_EXPECT_HOLDS(error,
                       concat("[checkpoint] ", path("run1/checkpoint/step-2"), " is damaged, and ",
                              path("run1/checkpoint/step-1"),
                              " has another model or tokenizer: give the step's folder to use it"));
}

TEST_F(ResumeTest, TwoRunsInOneFolderAreRefused) {
  Child first(train("a", {"--training.steps", "1000000", "--checkpoint.interval", "1000000"}),
              path("log"));
  ASSERT_TRUE(first.wait_for([&] { return fs::exists(path("a/metrics.jsonl")); }))
      << io::read_file(path("log"));
  const std::string error = error_of(train("a"));
  TESSERA_EXPECT_HOLDS(
      error, "error: [dump_folder] folder " + path("a") + " is used by another run (process ");
  first.signal(SIGKILL);
  EXPECT_EQ(first.wait(), -SIGKILL);
  // A lock does not outlive its process.
  EXPECT_EQ(run(train("a", {"--overwrite"})), 0) << err_.str();
}

TEST_F(ResumeTest, SignalsSave) {
  struct Case {
    const char* ranks;
    int stop, status;
    const char* said;
  };
  for (const auto& [ranks, stop, status, said] :
       {Case{"1", SIGINT, 130, "stopped by SIGINT after step "},
        Case{"2", SIGTERM, 0, "stopped by SIGTERM after step "}}) {
    const std::string dump = concat("a", ranks);
    const auto words = [&](const std::string& to, const std::string& steps) {
      return train(to, {"--training.steps", steps, "--lr_scheduler.decay_ratio", "0",
                        "--lr_scheduler.total_steps", "1000000",  // also of a run of two steps
                        "--checkpoint.interval", "1000000", "--checkpoint.keep_latest_k", "0",
                        "--metrics.log_freq", "1000000", "--ranks", ranks});
    };
    Child child(words(dump, "1000000"), path("log"));
    const CheckpointFolder folder(path(dump + "/checkpoint"));
    // The handlers are there before the first step is logged.
    ASSERT_TRUE(child.wait_for([&] {
      return fs::exists(path(dump + "/metrics.jsonl")) &&
             fs::file_size(path(dump + "/metrics.jsonl")) > 0;
    })) << io::read_file(path("log"));
    child.signal(SIGUSR1);
    ASSERT_TRUE(child.wait_for([&] { return folder.steps().size() == 1; }));
    child.signal(stop);
    EXPECT_EQ(child.wait(), status) << io::read_file(path("log"));
    const std::string log = io::read_file(path("log"));
    TESSERA_EXPECT_HOLDS(log, said);
    EXPECT_EQ(log.find("sample") == log.npos, true) << log;
    const std::vector<int64_t> steps = folder.steps();
    ASSERT_EQ(steps.size(), 2u);
    // Where the signals came does not change the bits.
    const int64_t last = steps.back();
    const std::string straight = concat("straight", ranks);
    Child other(words(straight, std::to_string(last)), path("straight_log"));
    EXPECT_EQ(other.wait(), 0) << io::read_file(path("straight_log"));
    expect_equal_bits(dump, straight, last);
  }
}

// Whatever a kill interrupts, every `step-N` that is there is whole, and it holds the bits of a run
// that was never killed. Every third run goes back, so that its saves replace others.
TEST_F(ResumeTest, AKilledSaveLeavesWholeCheckpoints) {
  const int wanted = test::long_form() ? 50 : 4;
  const CheckpointFolder folder(path("a/checkpoint"));
  const Words words = train("a", {"--training.steps", "1000000", "--lr_scheduler.decay_ratio", "0",
                                  "--checkpoint.interval", "1", "--checkpoint.keep_latest_k", "3"});
  std::mt19937 random(5);
  std::map<int64_t, std::vector<CheckpointFile>> seen;
  int in_save = 0, kills = 0, replacing = 0;
  for (; in_save < wanted && kills < 6 * wanted; ++kills) {
    Words next = words;
    if (kills % 3 == 2)
      next.insert(next.end(), {"--checkpoint.load_step", std::to_string(folder.steps().front())});
    Child child(next, path("log"));
    ASSERT_TRUE(child.wait_for([&] {
      return io::read_file(path("log")).find("\nsaved ") != std::string::npos;
    })) << io::read_file(path("log"));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 40'000));
    child.signal(SIGKILL);
    ASSERT_EQ(child.wait(), -SIGKILL);
    bool partial = false, replaced = false;
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      partial = partial || entry.path().extension() == ".partial";
      replaced = replaced || entry.path().extension() == ".replaced";
    }
    in_save += partial || replaced;
    replacing += replaced;
    const Session session;
    ASSERT_FALSE(folder.steps().empty());
    for (const int64_t step : folder.steps()) {
      const CheckpointReader reader(folder.folder_of(step));
      reader.verify();
      const auto files = reader.manifest().files;
      const auto [at, first] = seen.emplace(step, files);
      EXPECT_EQ(at->second, files) << "step " << step;
    }
  }
  run_ranks(1, [&](World&) {
    const Words straight = joined(words, {"--dump_folder", path("straight")});
    Trainer trainer(parse_config(std::span(straight).subspan(1)));
    for (const auto& [step, files] : seen) {
      while (trainer.records().empty() || trainer.records().back().step < step) trainer.step();
      trainer.save();
      EXPECT_EQ(manifest("straight", step).files, files) << "step " << step;
    }
  });
  std::cout << kills << " kills, " << in_save << " of them in a save or purge (" << replacing
            << " between the renames of a replacement); " << seen.size()
            << " checkpoints compared with a straight run\n";
}

}  // namespace
}  // namespace tessera::train
