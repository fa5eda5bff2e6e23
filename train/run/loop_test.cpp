// SPDX-License-Identifier: Apache-2.0
// The training loop against PyTorch, and against itself cut over ranks and micro-batches.
#include "tessera/autograd/autograd.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/nn/io/files.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/tests/support/parameter_of.h"
#include "tessera/tests/support/trained_golden.h"
#include "tessera/train/arrays/array_file.h"
#include "tessera/train/run/compare.h"
#include "tessera/train/run/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using Mode = nn::ActivationCheckpointConfig::Mode;

class LoopTest : public test::FolderTest {
 protected:
  LoopTest() {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "a" + std::to_string(i * i) + (i % 7 ? " " : "\n");
    io::write_file_atomically(folder_ + "/text.txt", text);
  }
  // A few thousand parameters, f32 throughout.
  [[nodiscard]] Config tiny() const {
    Config c = recipe("llama3_debugmodel");
    c.dump_folder = folder_ + "/run";
    c.overwrite = true;
    c.threads = 1;
    c.dataloader.path = folder_ + "/text.txt";
    auto& model = c.model.as<llama3::Config>();
    model.dim = 16;
    model.n_layers = 2;
    model.n_heads = 4;
    model.n_kv_heads = 2;
    model.ffn_dim = 24;
    model.vocab_size = 259;
    c.training.steps = 6;
    c.training.local_batch_size = 4;
    c.training.seq_len = 16;
    c.optimizer.lr = 1e-2;
    return c;
  }

  // Losses and gradient norms of a whole run on `ranks` threads.
  static std::vector<StepRecord> run(const Config& config, int ranks = 1,
                                     const BatchSource& source = {}) {
    std::vector<StepRecord> records;
    const auto on_rank = [&](World& world) {
      Trainer trainer(config, {}, nullptr, source);
      for (int64_t i = 0; i < config.training.steps; ++i) {
        const StepRecord r = trainer.step();
        if (world.rank() == 0) records.push_back(r);
      }
    };
    run_ranks(ranks, on_rank, world_options(config));
    return records;
  }

  static void expect_near(const std::vector<StepRecord>& a, const std::vector<StepRecord>& b,
                          double tolerance) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_LE(relative_difference(a[i].loss, b[i].loss), tolerance) << "step " << a[i].step;
      EXPECT_LE(relative_difference(a[i].grad_norm, b[i].grad_norm), 20 * tolerance)
          << "step " << a[i].step;
    }
  }
};

// The 20 steps of a golden on `ranks` ranks: the losses. Its batches have two rows; others, which
// more ranks need, hold no token that counts.
std::vector<double> golden_losses(const std::string& folder, int ranks, const std::string& golden,
                                  int64_t local_rows) {
  const auto json = test::golden_json(golden);
  Config c = recipe("llama3_debugmodel");
  c.dump_folder = folder;
  c.threads = 1;
  c.model.as<llama3::Config>() = test::golden_llama3(json);
  c.training.steps = json["steps"];
  c.training.local_batch_size = local_rows;
  c.training.global_batch_size = std::max(json["batch"].get<int64_t>(), ranks * local_rows);
  c.training.seq_len = json["seq_len"];
  c.training.max_norm = json["optimizer"]["max_norm"];
  c.optimizer = test::golden_optimizer<decltype(c.optimizer)>(json);
  c.lr_scheduler.warmup_steps = 0;
  c.lr_scheduler.decay_ratio = 0.0;
  c.sample.tokens = 0;
  std::vector<double> losses;
  const auto on_rank = [&](World& world) {
    const io::SafetensorsFile file = test::golden_tensors(golden);
    const Tensor tokens = file.read("data/tokens");  // (20, 2, 17)
    const auto source = [&](int64_t begin, int64_t count) -> Batch {
      const int64_t rows = c.training.global_batch_size, first = begin % rows;
      const Tensor all = select(tokens, 0, begin / rows);  // (2, 17)
      Batch batch{full({count, 16}, 0, DType::i64), full({count, 16}, -100, DType::i64)};
      for (int64_t row = 0; row < count && first + row < 2; ++row) {
        for (int64_t t = 0; t < 16; ++t) {
          const int64_t* from = all.data<int64_t>() + (first + row) * all.strides()[0] + t;
          batch.tokens.data<int64_t>()[row * 16 + t] = from[0];
          batch.targets.data<int64_t>()[row * 16 + t] = from[1];
        }
      }
      return batch;
    };
    Trainer trainer(c, {}, nullptr, source);
    test::load_initial(trainer.model(), file);
    for (int64_t i = 0; i < c.training.steps; ++i) {
      const StepRecord r = trainer.step();
      if (world.rank() == 0) losses.push_back(r.loss);
    }
  };
  run_ranks(ranks, on_rank, world_options(c));
  return losses;
}

TEST_F(LoopTest, TwentyStepsEqualPyTorchOnAnyRanks) {
  const auto json = test::golden_json("tiny_llama");
  const auto one = golden_losses(folder_ + "/one", 1, "tiny_llama", 2);
  ASSERT_EQ(one.size(), 20u);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], json["loss"][i], 1e-4) << i + 1;
  const auto accumulated = golden_losses(folder_ + "/accumulated", 1, "tiny_llama", 1);
  const auto two = golden_losses(folder_ + "/two", 2, "tiny_llama", 1);
  const auto four = golden_losses(folder_ + "/four", 4, "tiny_llama", 1);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(accumulated[i], one[i], 5e-6) << i + 1;
    EXPECT_NEAR(two[i], one[i], 5e-6) << i + 1;
    EXPECT_NEAR(four[i], one[i], 5e-6) << i + 1;
  }
}

TEST_F(LoopTest, RanksAndMicroBatchesTrainAsOneBatchDoes) {
  Config c = tiny();
  c.training.local_batch_size = 8;
  const auto whole = run(c);
  const auto cut = [&](int ranks, int64_t rows) {
    Config part = c;
    part.training.local_batch_size = rows;
    part.training.global_batch_size = 8;
    return run(part, ranks);
  };
  expect_near(cut(1, 2), whole, 5e-6);
  expect_near(cut(2, 4), whole, 5e-6);
  expect_near(cut(4, 2), whole, 5e-6);
  expect_near(cut(4, 1), whole, 5e-6);
}

// Rows that hold few tokens weigh no more per token than full ones, wherever they land.
// The shape of a batch's rows follows from the layout, so ranks exchange nothing to wrap them.
TEST_F(LoopTest, AStepGathersNoMetadata) {
  Config c = tiny();
  c.training.global_batch_size = 16;  // two micro-batches
  c.parallelism.data_parallel_replicate_degree = 2;
  run_ranks(2, [&](World& world) {
    Trainer trainer(c);
    trainer.step();
    FlightRecorder& recorder = world.group().recorder();
    uint64_t first = recorder.count();
    trainer.step();
    for (const FlightRecorder::Operation& o : recorder.ended_since(first))
      EXPECT_NE(o.kind, CollectiveKind::all_gather) << o.group << ", " << o.bytes << " bytes";
  });
}

TEST_F(LoopTest, LossIsPerTokenOverRanksAndMicroBatches) {
  Config c = tiny();
  c.training.local_batch_size = 4;
  c.training.steps = 3;
  const auto source = [&](int64_t begin, int64_t count) -> Batch {
    const int64_t step = begin / 4, first = begin % 4;
    Batch batch{empty({count, 16}, DType::i64), empty({count, 16}, DType::i64)};
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t t = 0; t < 16; ++t) {
        const int64_t at = (first + row) * 16 + t;
        batch.tokens.data<int64_t>()[row * 16 + t] = (at * 31 + step * 7) % 259;
        // Row r counts 16, 11, 6 and 1 tokens.
        batch.targets.data<int64_t>()[row * 16 + t] =
            t < 16 - 5 * (first + row) ? (at * 17) % 259 : -100;
      }
    }
    return batch;
  };
  const auto whole = run(c, 1, source);
  c.training.global_batch_size = 4;
  c.training.local_batch_size = 1;
  expect_near(run(c, 1, source), whole, 5e-6);
  expect_near(run(c, 2, source), whole, 5e-6);
  expect_near(run(c, 4, source), whole, 5e-6);
}

// Weight decay, moments and the rate's own steps would move the model without a gradient.
TEST_F(LoopTest, AStepWithoutTargetsIsAWarningAndUpdatesNothing) {
  Config c = tiny();
  c.training.steps = 3;
  c.training.local_batch_size = 2;
  const auto source = [](int64_t begin, int64_t count) -> Batch {
    Batch batch{empty({count, 16}, DType::i64), empty({count, 16}, DType::i64)};
    for (int64_t i = 0; i < batch.tokens.numel(); ++i) {
      batch.tokens.data<int64_t>()[i] = (i * 31 + begin) % 259;
      batch.targets.data<int64_t>()[i] = begin == 2 ? -100 : (i * 17) % 259;  // of step 2
    }
    return batch;
  };
  std::string printed;
  run_ranks(
      1,
      [&](World&) {
        Trainer trainer(
            c, [&](const std::string& line) { printed += line + '\n'; }, nullptr, source);
        const auto weights = [&] {
          std::vector<std::vector<double>> all;
          for (const Tensor& p : nn::parameters(trainer.model()))
            all.push_back(full_tensor(p).values());
          return all;
        };
        (void)trainer.step();
        const auto before = weights();
        EXPECT_EQ(printed.find("warning: no token"), printed.npos) << printed;
        EXPECT_EQ(trainer.step().loss, 0);
        EXPECT_EQ(weights(), before);
        EXPECT_NE(printed.find("warning: no token of step 2 has a target"), printed.npos);
        EXPECT_GT(trainer.step().loss, 0);
        EXPECT_NE(weights(), before);
      },
      world_options(c));
}

TEST_F(LoopTest, EvaluationOfNoTargetIsAnError) {
  Config c = tiny();
  c.training.steps = 1;
  // Documents of one token each, behind which another begins.
  const std::vector<int32_t> ids(400, 7);
  std::string bytes = npy_header(ElementType::i32, std::ssize(ids));
  bytes.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
  c.dataloader.path = c.validation.dataset_path = put("ids.npy", bytes);
  c.dataloader.begin_id = 7;
  c.validation.enable = true;
  run_ranks(
      1,
      [&](World&) {
        EXPECT_THROW(
            {
              Trainer trainer(c);
              (void)trainer.validate();
            },
            DataError);
      },
      world_options(c));
}

TEST_F(LoopTest, CheckpointingChangesNoBit) {
  Config c = tiny();
  const auto plain = run(c);
  for (const auto& [mode, option] :
       std::vector<std::pair<Mode, std::string>>{{Mode::full, "op"},
                                                 {Mode::selective, "op"},
                                                 {Mode::selective, "2"},
                                                 {Mode::memory_budget, "op"}}) {
    c.activation_checkpoint.mode = mode;
    c.activation_checkpoint.selective_option = option;
    const auto again = run(c);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(again[i].loss, plain[i].loss);
      EXPECT_EQ(again[i].grad_norm, plain[i].grad_norm);
    }
  }
}

TEST_F(LoopTest, NarrowPrecisionsLearnToo) {
  Config c = tiny();
  c.training.steps = 40;
  const auto wide = run(c);
  const auto close_to_it = [&](const Config& config, double tolerance) {
    const auto narrow = run(config);
    EXPECT_NE(narrow.back().loss, wide.back().loss);
    EXPECT_NEAR(narrow.back().loss, wide.back().loss, tolerance);
    const auto cut = run(config, 2);  // it runs on ranks too
    EXPECT_TRUE(std::isfinite(cut.back().loss));
  };
  Config mixed = c;
  mixed.training.mixed_precision_param = DType::bf16;
  close_to_it(mixed, 0.05);
  Config states = c;
  states.optimizer.state_dtype = DType::bf16;
  close_to_it(states, 0.1);
  Config narrow = mixed;
  narrow.model.dtype() = DType::bf16;
  close_to_it(narrow, 0.3);
  Config both = mixed;
  both.activation_checkpoint.mode = Mode::full;
  EXPECT_EQ(run(both).back().loss, run(mixed).back().loss);
}

TEST_F(LoopTest, StochasticRoundingIsTheSameOnRanks) {
  Config c = tiny();
  c.optimizer.state_dtype = DType::bf16;
  c.training.local_batch_size = 8;
  const auto whole = run(c);
  EXPECT_EQ(run(c).back().loss, whole.back().loss);
  c.training.local_batch_size = 2;
  c.training.global_batch_size = 8;
  expect_near(run(c, 2), whole, 1e-3);
}

TEST_F(LoopTest, GroupsHaveTheirOwnRates) {
  Config c = tiny();
  c.optimizer.param_groups = {"norm lr=0 weight_decay=0", "output|tok_embeddings lr=5e-3"};
  run_ranks(1, [&](World&) {
    Trainer trainer(c);
    const auto before = local(test::parameter_of(trainer.model(), "norm.weight")).values();
    const auto other = local(test::parameter_of(trainer.model(), "output.weight")).values();
    trainer.step();
    EXPECT_EQ(local(test::parameter_of(trainer.model(), "norm.weight")).values(), before);
    EXPECT_NE(local(test::parameter_of(trainer.model(), "output.weight")).values(), other);
  });
  c.optimizer.param_groups = {"norm lr=0", "ffn_norm lr=1e-3"};
  EXPECT_THROW(run(c), ConfigError);  // the first takes all that the second wants
}

TEST_F(LoopTest, ValuesThatProgramsSetAreCheckedToo) {
  Config c = tiny();
  c.training.steps = 0;
  c.optimizer.lr = -1;
  try {
    run(c);
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "[--training.steps] 0 is out of range: expected 1 to 1000000000000\n"
                 "[--optimizer.lr] -1 is out of range: expected 0 to 1000000");
  }
  Config uneven = tiny();
  uneven.training.global_batch_size = 12;
  EXPECT_THROW(run(uneven, 2), ConfigError);
  EXPECT_FALSE(fs::exists(folder_ + "/run"));
}

TEST_F(LoopTest, ValidationCountsEveryTokenOnceOnAnyRanks) {
  Config c = tiny();
  c.validation.enable = true;
  c.validation.dataset_path = folder_ + "/text.txt";
  c.validation.seq_len = 32;
  c.validation.steps = -1;
  const auto validated = [&](int ranks, int64_t rows) {
    Evaluation result;
    c.validation.local_batch_size = rows;
    const auto on_rank = [&](World& world) {
      Trainer trainer(c);
      const Evaluation e = trainer.validate();
      if (world.rank() == 0) result = e;
    };
    run_ranks(ranks, on_rank, world_options(c));
    return result;
  };
  const Evaluation one = validated(1, 1);
  EXPECT_NEAR(one.perplexity, std::exp(one.loss), 1e-9 * one.perplexity);
  DataLoader all({.path = c.validation.dataset_path},
                 {.seq_len = 32, .vocabulary = 259, .evaluation = true});
  EXPECT_EQ(one.tokens, all.info().tokens - 1);  // each has its target but the last
  for (const auto& [ranks, rows] : std::vector<std::pair<int, int64_t>>{{1, 7}, {3, 5}, {2, 64}}) {
    const Evaluation e = validated(ranks, rows);
    EXPECT_EQ(e.tokens, one.tokens);
    EXPECT_NEAR(e.loss, one.loss, 1e-6);
  }
  c.validation.steps = 2;
  EXPECT_EQ(validated(1, 3).tokens, 2 * 3 * 32);
}

TEST_F(LoopTest, CompareFindsWhatDiffersAndWhatDoesNot) {
  Config a = tiny(), b = tiny();
  b.debug.seed = 99;
  b.training.local_batch_size = 2;
  b.training.global_batch_size = 4;
  b.ranks = 2;
  CompareConfig options;
  options.steps = 4;
  options.dump_folder = folder_ + "/compare";
  options.overwrite = true;
  const Comparison close = compare(a, b, options);
  ASSERT_EQ(close.a.size(), 4u);
  EXPECT_LE(close.loss.difference, 1e-5);
  b.optimizer.lr = 2e-2;
  const Comparison apart = compare(a, b, options);
  EXPECT_GT(apart.loss.difference, 1e-4);
  EXPECT_GT(apart.loss.step, 1);
  // The first steps of a longer run have its rates.
  EXPECT_EQ(close.a[3].lr, run(a)[3].lr);
}

}  // namespace
}  // namespace tessera::train
