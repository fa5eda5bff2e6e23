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

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

struct Layouts {
  int replicate, shard, cp, tp, rows;  // rows: local_batch_size
  [[nodiscard]] int ranks() const { return replicate * shard * cp * tp; }
};
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
    return config(dump,
                  {"--parallelism.data_parallel_replicate_degree", std::to_string(r.replicate),
                   "--parallelism.data_parallel_shard_degree", std::to_string(r.shard),
                   "--parallelism.context_parallel_degree", std::to_string(r.cp),
                   "--parallelism.tensor_parallel_degree", std::to_string(r.tp),
                   "--training.local_batch_size", std::to_string(r.rows),
                   "--training.global_batch_size", std::to_string(kGlobalRows),
                   "--lr_scheduler.decay_ratio", "0", "--training.steps", std::to_string(steps)});
  }
  // Trains from one step to another, with a save before and after; the rows that were read.
  std::set<int64_t> go_on(const std::string& dump, const Layouts& r, int begin, int end) {
    std::set<int64_t> rows;
    std::mutex mutex;
    const auto source = [&](int64_t first, int64_t count) -> Batch {
      const std::scoped_lock lock(mutex);
      for (int64_t row = first; row < first + count; ++row) rows.insert(row);
      return {full({count, 16}, static_cast<double>(first % 7), DType::i64),
              full({count, 16}, static_cast<double>(first % 5), DType::i64)};
    };
    run_ranks(r.ranks(), [&](World&) {
      Trainer trainer(config_of(dump, r, end), {}, nullptr, source);
      trainer.save();
      for (int i = begin; i < end; ++i) trainer.step();
      trainer.save();
    });
    return rows;
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
};

TEST_F(MeshResumeTest, AnotherMeshHasTheSameBitsAndGoesOnWithTheNextRows) {
  const bool all = test::long_form();
  int pairs = 0;
  for (size_t a = 0; a < kRuns.size(); ++a) {
    const std::string from = concat("from", a);
    (void)go_on(from, kRuns[a], 0, 2);
    for (size_t b = 0; b < kRuns.size(); ++b) {
      if (a == b || (!all && b != (a + 3) % kRuns.size())) continue;
      SCOPED_TRACE(concat("from mesh ", a, " to mesh ", b));
      fs::remove_all(path("to"));
      fs::copy(path(from), path("to"), fs::copy_options::recursive);
      const std::set<int64_t> rows = go_on("to", kRuns[b], 2, 3);
      expect_equal_tensors(from, "to", 2);
      EXPECT_EQ(rows.size(), static_cast<size_t>(kGlobalRows));
      EXPECT_EQ(*rows.begin(), 2 * kGlobalRows);
      EXPECT_EQ(*rows.rbegin(), 3 * kGlobalRows - 1);
      ++pairs;
    }
  }
  std::cout << pairs << " pairs of meshes\n";
}

}  // namespace
}  // namespace tessera::train
