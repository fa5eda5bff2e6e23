// SPDX-License-Identifier: Apache-2.0
// A batch trains alike however it is cut into micro-batches, ranks and recomputed layers, dropout
// included; and a run that goes on with another cut takes the rows that follow.
#include "tessera/core/draws.h"
#include "tessera/core/op_row.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/io/crc32c.h"
#include "tessera/tests/support/parameter_of.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trials.h"
#include "tessera/tests/support/whole_checkpoint.h"
#include "tessera/train/run/trainer.h"
#include "tessera/train/step/build_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>

namespace tessera::train {
namespace {

class MicroBatchTest : public TinyRunTest {
 protected:
  // A GPT-2 in f64 with dropout everywhere, 8 rows per step.
  [[nodiscard]] Config gpt2(const std::string& dump, int64_t local_rows, const Words& more) const {
    const Words fields{"--recipe",
                       "gpt2_debugmodel",
                       "--model.dim",
                       "16",
                       "--model.n_layers",
                       "2",
                       "--model.n_heads",
                       "2",
                       "--model.vocab_size",
                       "260",
                       "--model.embedding_dropout",
                       "0.2",
                       "--model.residual_dropout",
                       "0.3",
                       "--training.dtype",
                       "float64",
                       "--training.mixed_precision_param",
                       "float64",
                       "--training.steps",
                       "2",
                       "--training.seq_len",
                       "8",
                       "--training.global_batch_size",
                       "8",
                       "--training.local_batch_size",
                       std::to_string(local_rows),
                       "--sample.tokens",
                       "0"};
    return parse_config(joined(joined(into(dump), fields), more));
  }

  // What two steps compute: losses and norms, gradients of the last step as the optimizer gets
  // them, and which elements of each row dropout kept, by the draw's key and the row in the batch.
  struct Seen {
    std::vector<double> figures;
    std::map<std::string, std::vector<double>> gradients;
    std::map<std::pair<int64_t, int64_t>, std::vector<bool>> kept;
  };
  Seen seen(const std::string& dump, int ranks, int64_t local_rows, const Words& more = {}) {
    Seen all;
    std::mutex mutex;
    const Config config = gpt2(dump, local_rows, more);
    const auto on_rank = [&](World& world) {
      Trainer trainer(config);
      Context& context = Context::current();
      // Ranks share what they have in here, by ops that are not looked at.
      bool looking = true;
      context.op_hook = [&](const OpRow& row, const void*, Tensors in, Tensors out) {
        if (!std::exchange(looking, false)) return;
        const NoGrad guard;
        if (row.name == "dropout") note_masks(all, mutex, in, out[0]);
        if (row.name == "adamw_") {
          const double factor = in[3].item();  // of clipping
          for (const auto& p : nn::named_parameters(trainer.model())) {
            std::vector<double> whole = trial::whole_values(p.tensor.grad());
            for (double& g : whole) g *= factor;
            if (world.rank() == 0) all.gradients[p.name] = whole;
          }
        }
        looking = true;
      };
      for (int step = 0; step < 2; ++step) {
        const StepRecord r = trainer.step();
        if (world.rank() == 0) all.figures.insert(all.figures.end(), {r.loss, r.grad_norm});
      }
      context.op_hook = {};
    };
    run_ranks(ranks, on_rank, world_options(config));
    return all;
  }

  // A step that fails with `message`, because of `value` in two weights where `here`.
  static void spoil(Trainer& trainer, bool here, double value, const std::string& message) {
    std::vector<Tensor> weights, before;
    for (const char* w : {"w1", "w3"}) {
      const std::string name = concat("layers.1.feed_forward.", w, ".weight");
      weights.push_back(local(test::parameter_of(trainer.model(), name)));
      before.push_back(copy(weights.back()));
      if (here) copy_bytes(weights.back(), full(weights.back().shape(), value));
    }
    const auto all = [&] {
      std::string bytes;
      for (const auto& p : model_tensors(trainer.model())) {
        const Tensor part = p.tensor.is_distributed() ? local(p.tensor) : p.tensor;
        bytes.append(static_cast<const char*>(part.raw_data()),
                     static_cast<size_t>(part.numel() * item_size(part.dtype())));
      }
      return bytes;
    };
    const std::string untouched = all();
    int updates = 0;
    Context::current().op_hook = [&](const OpRow& op, const void*, Tensors, Tensors) {
      updates += op.name == "adamw_";
    };
    try {
      trainer.step();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const NumericError& error) {
      const std::string text = error.what();
      TESSERA_EXPECT_HOLDS(text, "[train] step 2: the ");
      TESSERA_EXPECT_HOLDS(text, message);
    }
    Context::current().op_hook = {};
    EXPECT_GT(updates, 0);
    EXPECT_TRUE(all() == untouched);
    for (size_t i = 0; i < weights.size(); ++i) copy_bytes(weights[i], before[i]);
  }

 private:
  // Forward, recompute and backward of a row must agree, as must all that hold it.
  static void note_masks(Seen& all, std::mutex& mutex, Tensors in, const Tensor& y) {
    const auto before = trial::whole_values(in[0]), after = trial::whole_values(y);
    const int64_t rows = y.size(0), each = y.numel() / rows;
    const int64_t stream = *in[2].data<int64_t>();
    const std::scoped_lock lock(mutex);
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<bool> kept;
      for (int64_t i = r * each; i < (r + 1) * each; ++i) {
        ASSERT_NE(before[static_cast<size_t>(i)], 0);  // else a 0 says nothing
        kept.push_back(after[static_cast<size_t>(i)] != 0);
      }
      const int64_t row = micro_batch_row() + r;
      const auto [at, first] = all.kept.emplace(std::pair(stream, row), kept);
      EXPECT_TRUE(first || at->second == kept) << "row " << row;
    }
  }
};

TEST_F(MicroBatchTest, DropoutAndGradientsAreThoseOfTheWholeBatch) {
  const Seen whole = seen("whole", 1, 8);
  ASSERT_EQ(whole.figures.size(), 4u);
  EXPECT_EQ(whole.kept.size(), 2u * 8 * 5);  // steps, rows, dropouts
  const auto expect_equal = [&](const Seen& cut, const std::string& what) {
    EXPECT_TRUE(cut.kept == whole.kept)
        << what << ": " << cut.kept.size() << " of " << whole.kept.size();
    for (size_t i = 0; i < whole.figures.size(); ++i)
      EXPECT_NEAR(cut.figures[i] / whole.figures[i], 1, 1e-12) << what;
    ASSERT_EQ(cut.gradients.size(), whole.gradients.size());
    for (const auto& [name, want] : whole.gradients) {
      const std::vector<double>& got = cut.gradients.at(name);
      ASSERT_EQ(got.size(), want.size()) << what << ", " << name;
      double difference = 0, size = 0;
      for (size_t j = 0; j < want.size(); ++j) {
        difference += std::pow(got[j] - want[j], 2);
        size += std::pow(want[j], 2);
      }
      // Those of the keys' biases are zero but for rounding.
      EXPECT_LE(std::sqrt(difference), 1e-12 * std::sqrt(size) + 1e-17) << what << ", " << name;
    }
  };
  const Words full{"--activation_checkpoint.mode", "full"};
  expect_equal(seen("two", 1, 2), "4 micro-batches of 2");
  expect_equal(seen("four", 1, 4), "2 micro-batches of 4");
  expect_equal(seen("full", 1, 2, full), "2 rows, recomputed");
  const Words replicas{"--parallelism.data_parallel_replicate_degree", "2"},
      tensor{"--parallelism.tensor_parallel_degree", "2"},
      whole_rows = joined(tensor, {"--parallelism.no-enable_sequence_parallel"});
  expect_equal(seen("replicas", 2, 2, replicas), "2 replicas, 2 micro-batches of 2 x 2");
  expect_equal(seen("shards", 4, 1, full), "4 shards, 2 micro-batches of 4 x 1, recomputed");
  expect_equal(seen("hybrid", 4, 1, replicas), "2 replicas of 2 shards, 2 micro-batches of 4 x 1");
  expect_equal(seen("tensor", 2, 4, whole_rows), "2 parts of tensors, 2 micro-batches of 4");
  expect_equal(seen("sequence", 4, 2, joined(tensor, full)),
               "2 shards x 2 parts of sequences, 2 micro-batches of 2 x 2, recomputed");
}

// Rows are taken in order, each once, by whichever rank and in whatever batch.
TEST_F(MicroBatchTest, ARunGoesOnWithTheRowsThatFollow) {
  std::vector<int64_t> rows;
  std::mutex mutex;
  const auto source = [&](int64_t first, int64_t count) -> Batch {
    const std::scoped_lock lock(mutex);
    for (int64_t r = first; r < first + count; ++r) rows.push_back(r);
    return {full({count, 16}, 1, DType::i64), full({count, 16}, 2, DType::i64)};
  };
  // Rows of a step that never comes are not read.
  int64_t done = 0;
  const auto go_on = [&](int ranks, const char* local, const char* global, int steps) {
    done += steps;
    const Config c =
        config("a", {"--training.local_batch_size", local, "--training.global_batch_size", global,
                     "--training.steps", std::to_string(done)});
    run_ranks(ranks, [&](World&) {
      Trainer trainer(c, {}, nullptr, source);
      for (int i = 0; i < steps; ++i) trainer.step();
      trainer.save();
    });
  };
  go_on(1, "2", "2", 2);   // 0 to 3
  go_on(2, "2", "8", 1);   // to 11
  go_on(4, "1", "-1", 2);  // to 19
  go_on(1, "3", "6", 1);   // to 25
  std::vector<int64_t> expected(26);
  std::iota(expected.begin(), expected.end(), 0);
  std::ranges::sort(rows);
  EXPECT_EQ(rows, expected);
}

// While a step computes, the rows of the next one are read. Their fault is that step's, whose rows
// are read again when it is tried again; a checkpoint counts the rows that were trained on.
TEST_F(MicroBatchTest, ARankReadsOneStepAhead) {
  std::vector<int64_t> firsts;
  bool faulty = false;
  const auto source = [&](int64_t first, int64_t count) -> Batch {
    firsts.push_back(first);
    if (faulty) fail<DataError>("source", "a fault at row ", first);
    return {full({count, 16}, 1, DType::i64), full({count, 16}, 2, DType::i64)};
  };
  using Firsts = std::vector<int64_t>;
  const Config c = config("a", {"--training.global_batch_size", "4", "--training.steps", "4"});
  const auto read_by = [&](Trainer& trainer) {
    firsts.clear();
    (void)trainer.step();
    return firsts;
  };
  run_ranks(1, [&](World&) {
    Trainer trainer(c, {}, nullptr, source);
    EXPECT_EQ(firsts, Firsts{});
    EXPECT_EQ(read_by(trainer), (Firsts{0, 2, 4, 6}));
    faulty = true;
    EXPECT_EQ(read_by(trainer), Firsts{8});
    trainer.save();
    EXPECT_EQ(trial::error_of<DataError>([&] { (void)trainer.step(); }),
              "[source] a fault at row 8");
    faulty = false;
    EXPECT_EQ(read_by(trainer), (Firsts{8, 10, 12, 14}));
    EXPECT_EQ(read_by(trainer), Firsts{});  // the last step
  });
  const std::string saved = path("a/checkpoint/step-2/manifest.json");
  EXPECT_EQ(parse_manifest(io::read_file(saved), saved).progress.data_rows, 8);
}

// Of version 1, as programs wrote it that counted global batches.
TEST_F(MicroBatchTest, ACheckpointThatCountedBatchesIsReadWhereTheBatchIsTheSame) {
  ASSERT_EQ(run(train("a", {"--training.steps", "3"})), 0) << err_.str();
  {
    const Session session;
    test::make_whole(path("a/checkpoint/step-3"), 1, /*batches=*/3);
  }
  EXPECT_EQ(run(train("a", {"--training.steps", "4", "--training.local_batch_size", "3"})), 1);
  TESSERA_EXPECT_HOLDS(err_.str(),
                       "step-3 is of an earlier version, which counted 3 global batches taken from "
                       "the data and not their rows, and training.local_batch_size was 2, here it "
                       "is 3: ");
  EXPECT_EQ(run(train("a", {"--training.steps", "4"})), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(),
                       "step-3 counted 3 global batches, not rows: taken for "
                       "6 rows, as of 1 rank");
  const std::string next = path("a/checkpoint/step-4/manifest.json");
  EXPECT_EQ(parse_manifest(io::read_file(next), next).progress.data_rows, 8);
}

// The update of such a step runs and does nothing: a trainer that goes on equals one that never had
// it. Only the last rank's weights are spoilt; `makers` compute with them.
struct SpoiltRun {
  int ranks;
  const char* makers;
  Words degrees;
};

TEST_F(MicroBatchTest, AStepThatIsNotFiniteChangesNothingAndNamesTheRank) {
  int number = 0;
  for (const SpoiltRun& way :
       {SpoiltRun{2, "rank 1", {"--parallelism.data_parallel_replicate_degree", "2"}},
        SpoiltRun{4, "ranks 1, 3", {"--parallelism.tensor_parallel_degree", "2"}}}) {
    std::vector<StepRecord> records[2];
    for (const bool spoilt : {false, true}) {
      const Config c = config(std::to_string(number++),
                              joined({"--optimizer.state_dtype", "bfloat16"}, way.degrees));
      run_ranks(way.ranks, [&](World& world) {
        const bool here = world.rank() == way.ranks - 1;
        Trainer trainer(c);
        trainer.step();
        if (spoilt) {
          spoil(trainer, here, 1e20,
                concat("first made by op swiglu in module layers.1.feed_forward on ", way.makers,
                       "; stopped before"));
          spoil(trainer, here, std::numeric_limits<double>::quiet_NaN(),
                concat("parameter layers.1.feed_forward.w1.weight on rank ", way.ranks - 1,
                       " already is not finite;"));
        }
        for (int i = 0; i < 2; ++i) {
          const StepRecord r = trainer.step();
          if (world.rank() == 0) records[spoilt].push_back(r);
        }
      });
    }
    ASSERT_EQ(records[1].size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(records[1][i].step, records[0][i].step);
      EXPECT_EQ(records[1][i].loss, records[0][i].loss);
      EXPECT_EQ(records[1][i].grad_norm, records[0][i].grad_norm);
    }
  }
}

}  // namespace
}  // namespace tessera::train
