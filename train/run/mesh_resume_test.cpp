// SPDX-License-Identifier: Apache-2.0
// A run goes on on another mesh: the same bits of parameters and optimizer states after the load,
// and the rows of the straight run from there on, whatever the ranks and the batch of each.
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/train/run/trainer.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <mutex>
#include <set>
#include <span>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

struct Layouts {
  int replicate, shard, cp, tp, rows;  // rows: local_batch_size
  int pp = 1;
  bool exact = false;  // the numbers of one rank with micro-batches of a row
  const char* schedule = "1F1B";
  [[nodiscard]] int ranks() const { return replicate * shard * cp * tp * pp; }
};
// One, and pipelines.
constexpr std::array<Layouts, 8> kPipelines{{{1, 1, 1, 1, 1, 1, true},
                                             {1, 1, 1, 1, 12, 2, true},
                                             {1, 1, 1, 1, 12, 2, true, "ZBVZeroBubble"},
                                             {1, 1, 1, 1, 6, 4, true},
                                             {1, 1, 1, 1, 6, 2, true, "DualPipeV"},
                                             {1, 1, 1, 1, 4, 2, true, "InterleavedZeroBubble"},
                                             {1, 2, 1, 1, 6, 2},
                                             {1, 1, 1, 2, 4, 2}}};
constexpr std::array<Layouts, 11> kRuns{{{1, 1, 1, 1, 12},
                                         {1, 2, 1, 1, 6},
                                         {1, 1, 1, 2, 4},
                                         {1, 1, 3, 1, 6},
                                         {1, 3, 1, 1, 2},
                                         {2, 2, 1, 1, 3},
                                         {1, 2, 2, 1, 3},
                                         {2, 1, 1, 2, 1},
                                         {1, 3, 1, 2, 4},
                                         {2, 1, 2, 2, 2},
                                         {2, 2, 1, 2, 1}}};
constexpr int64_t kGlobalRows = 12;

class MeshResumeTest : public TinyRunTest {
 protected:
  [[nodiscard]] Config config_of(const std::string& dump, const Layouts& r, int steps) const {
    const std::vector<std::pair<std::string, int64_t>> sizes{
        {"parallelism.data_parallel_replicate_degree", r.replicate},
        {"parallelism.data_parallel_shard_degree", r.shard},
        {"parallelism.context_parallel_degree", r.cp},
        {"parallelism.tensor_parallel_degree", r.tp},
        {"parallelism.pipeline_parallel_degree", r.pp},
        {"model.n_layers", layers_},
        {"training.local_batch_size", r.rows},
        {"training.global_batch_size", kGlobalRows},
        {"training.steps", steps},
        {"lr_scheduler.warmup_steps", 1}};
    Words words{"--lr_scheduler.decay_ratio", "0", "--parallelism.pipeline_parallel_schedule",
                r.schedule};
    for (const auto& [field, size] : sizes)
      words = joined(words, {"--" + field, std::to_string(size)});
    return config(dump, words);
  }
  // Trains from one step to another, with a save before and after; the rows that were read.
  std::set<int64_t> go_on(const std::string& dump, const Layouts& r, int begin, int end) {
    std::set<int64_t> rows;
    std::mutex mutex;
    const auto source = [&](int64_t first, int64_t count) -> Batch {
      const std::scoped_lock lock(mutex);
      std::vector<double> tokens, targets;
      for (int64_t row = first; row < first + count; ++row) {
        rows.insert(row);
        tokens.insert(tokens.end(), 16, static_cast<double>(row % 7));
        targets.insert(targets.end(), 16, static_cast<double>(row % 5));
      }
      return {from_values(tokens, {count, 16}, DType::i64),
              from_values(targets, {count, 16}, DType::i64)};
    };
    run_ranks(r.ranks(), [&](World&) {
      Trainer trainer(config_of(dump, r, end), {}, nullptr, source);
      trainer.save();
      for (int i = begin; i < end; ++i) trainer.step();
      trainer.save();
    });
    return rows;
  }
  // Every pair of meshes, or, by default, each with the one `apart` places behind it.
  void expect_pairs(std::span<const Layouts> runs, size_t apart) {
    const bool all = test::long_form();
    int pairs = 0;
    for (size_t a = 0; a < runs.size(); ++a) {
      const std::string from = concat("from", a);
      (void)go_on(from, runs[a], 0, 2);
      if (runs[a].exact) (void)go_on(concat("straight", a), runs[a], 0, 3);
    }
    for (size_t a = 0; a < runs.size(); ++a) {
      const std::string from = concat("from", a);
      for (size_t b = 0; b < runs.size(); ++b) {
        if (a == b || (!all && b != (a + apart) % runs.size())) continue;
        SCOPED_TRACE(concat("from mesh ", a, " to mesh ", b));
        fs::remove_all(path("to"));
        fs::copy(path(from), path("to"), fs::copy_options::recursive);
        const std::set<int64_t> rows = go_on("to", runs[b], 2, 3);
        expect_equal_tensors(from, "to", 2);
        if (runs[a].exact && runs[b].exact) expect_equal_tensors(concat("straight", b), "to", 3);
        EXPECT_EQ(rows.size(), static_cast<size_t>(kGlobalRows));
        EXPECT_EQ(*rows.begin(), 2 * kGlobalRows);
        EXPECT_EQ(*rows.rbegin(), 3 * kGlobalRows - 1);
        ++pairs;
      }
    }
    std::cout << pairs << " pairs of meshes\n";
  }
  void expect_equal_tensors(const std::string& a, const std::string& b, int64_t step) const {
    const Session session;
    const CheckpointReader x(CheckpointFolder(path(a + "/checkpoint")).folder_of(step)),
        y(CheckpointFolder(path(b + "/checkpoint")).folder_of(step));
    EXPECT_EQ(x.manifest().progress, y.manifest().progress);
    const Manifest &m = x.manifest(), &n = y.manifest();
    for (const auto& [of_x, of_y] : {std::pair(&m.model, &n.model), {&m.optimizer, &n.optimizer}}) {
      ASSERT_FALSE(of_x->empty());
      const auto s = x.read_all(*of_x), t = y.read_all(*of_y);
      ASSERT_EQ(s.size(), t.size());
      for (size_t i = 0; i < s.size(); ++i) {
        ASSERT_EQ(s[i].name, t[i].name);
        ASSERT_EQ(s[i].tensor.shape(), t[i].tensor.shape());
        EXPECT_EQ(
            std::memcmp(s[i].tensor.read_data(), t[i].tensor.read_data(),
                        static_cast<size_t>(s[i].tensor.numel() * item_size(s[i].tensor.dtype()))),
            0)
            << s[i].name;
      }
    }
  }

  int layers_ = 2;
};

TEST_F(MeshResumeTest, AnotherMeshHasTheSameBitsAndGoesOnWithTheNextRows) {
  expect_pairs(kRuns, 3);
}

// From one pipeline to another, and from one rank and to it; where both compute the same bits, the
// third step is that of a run that was on the second mesh from the start.
TEST_F(MeshResumeTest, AnotherPipelineHasTheSameBitsAndGoesOnWithTheNextRows) {
  layers_ = 4;
  expect_pairs(kPipelines, 1);
}

}  // namespace
}  // namespace tessera::train
