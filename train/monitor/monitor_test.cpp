// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/monitor/monitor.h"

#include "tessera/core/context.h"
#include "tessera/core/error.h"
#include "tessera/dist/launch/run.h"
#include "tessera/dist/mesh.h"
#include "tessera/dist/world.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/nn/io/files.h"
#include "tessera/nn/parallel/tensor_parallel.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/train/monitor/summary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <mutex>
#include <sstream>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

class MonitorTest : public test::FolderTest {
 protected:
  [[nodiscard]] std::function<void(const std::string&)> printer() {
    return [this](const std::string& line) { lines_.push_back(line); };
  }
  [[nodiscard]] size_t lines_with(std::string_view part) const {
    return static_cast<size_t>(std::ranges::count_if(
        lines_, [&](const std::string& l) { return l.find(part) != l.npos; }));
  }
  std::vector<std::string> lines_;
};

TEST_F(MonitorTest, LinesFilesAndTheCeilingOnEveryRank) {
  run_ranks(2, [&](World& world) {
    Monitor monitor({.log_freq = 4, .enable_tensorboard = true}, {},
                    {.dump_folder = folder_, .steps = 9, .tokens_per_step = 100}, world, printer());
    EXPECT_EQ(monitor.ceiling(), 0);
    for (int64_t i = 1; i <= 9; ++i) {
      monitor.begin_step(i);
      monitor.end_step(i);
      monitor.record({.step = i, .loss = 1, .tokens_per_second = 1000});
      EXPECT_GT(monitor.ceiling(), 0);
    }
    monitor.finish();
  });
  EXPECT_EQ(lines_with("step:"), 4u);  // 1, 4, 8, 9, on rank 0 alone
  EXPECT_EQ(lines_with("mfu:"), 3u);
  EXPECT_EQ(lines_with("ceiling:"), 1u);
  EXPECT_EQ(lines_with("memory at its peak"), 1u);
  EXPECT_EQ(read_metrics(folder_ + "/metrics.jsonl", "loss").steps.size(), 9u);
  size_t events = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder_ + "/tb"))
    events += entry.is_regular_file() && entry.file_size() > 1000;
  EXPECT_EQ(events, 1u);
}

TEST_F(MonitorTest, MfuIsNotAvailableWhileThePeakHasDrifted) {
  run_ranks(1, [&](World& world) {
    Monitor monitor({.log_freq = 1, .measure_ceiling = false}, {},
                    {.dump_folder = folder_, .steps = 9, .tokens_per_step = 1}, world, printer());
    const auto line_of = [&](int64_t step, double flops) {
      monitor.begin_step(step);
      monitor.end_step(step);
      monitor.record({.step = step, .loss = 1, .tokens_per_second = 1, .flops = flops});
      return lines_.back();
    };
    monitor.peak_measured(1e12);
    EXPECT_NE(line_of(1, 5e11).find("mfu: 50.00%"), std::string::npos);
    monitor.peak_measured(0.91e12);
    EXPECT_NE(line_of(2, 5e11).find("mfu: 50.00%"), std::string::npos);
    monitor.peak_measured(0.89e12);
    EXPECT_NE(lines_.back().find("mfu is N/A now: the peak was measured again as 0.89 TFLOP/s"),
              std::string::npos)
        << lines_.back();
    EXPECT_NE(line_of(3, 5e11).find("mfu: N/A"), std::string::npos);
    monitor.peak_measured(1.05e12);
    EXPECT_NE(line_of(4, 5e11).find("mfu: 50.00%"), std::string::npos);
    EXPECT_EQ(monitor.ceiling(), 1e12);
    // Never above 100 %, and never silently.
    EXPECT_NE(line_of(5, 1.2e12).find("mfu: N/A"), std::string::npos);
    EXPECT_EQ(lines_with("above 100 %: step 5 ran 1.2 TFLOP/s"), 1u);
  });
}

TEST_F(MonitorTest, ABarOnATerminalAndNoneWhereItIsNotWanted) {
  for (const bool plain : {false, true}) {
    std::ostringstream out;
    Screen screen(out, {.bar = true, .color = true, .width = 60});
    run_ranks(1, [&](World& world) {
      Monitor monitor(
          {.disable_color_printing = plain, .measure_ceiling = false}, {},
          {.dump_folder = folder_, .steps = 2}, world,
          [&](const std::string& line) { screen.line(line); }, &screen);
      for (int64_t i = 1; i <= 2; ++i) {
        monitor.begin_step(i);
        monitor.end_step(i);
        monitor.record({.step = i, .loss = 1});
      }
      monitor.finish();
    });
    EXPECT_EQ(out.str().find('\033') == std::string::npos, plain);
    EXPECT_NE(out.str().find("step:  2"), std::string::npos);
  }
}

TEST_F(MonitorTest, MemoryByKind) {
  run_ranks(1, [&](World& world) {
    constexpr int64_t kBytes = int64_t{1} << 20;  // of each tensor
    const Shape shape{kBytes / 4};
    Tensor w = full(shape, 1).set_requires_grad();
    Monitor monitor(
        {.measure_ceiling = false}, {},
        {.dump_folder = folder_, .steps = 1, .parameters = {w}, .optimizer_bytes = 2 * kBytes},
        world, printer());
    monitor.begin_step(1);
    Tensor loss;
    {
      const auto phase = monitor.phase("forward");
      const Tensor y = w * w;  // kept, since the next product saves it
      loss = sum(y * y);
    }
    {
      const auto phase = monitor.phase("backward");
      backward(loss);
    }
    monitor.end_step(1);
    monitor.record({.step = 1});
    const MemoryByKind& m = monitor.memory();
    EXPECT_EQ(m.parameters, kBytes);
    EXPECT_EQ(m.optimizer, 2 * kBytes);
    EXPECT_EQ(m.gradients, kBytes);
    EXPECT_GE(m.activations, kBytes);
    EXPECT_LT(m.activations, 2 * kBytes);
    EXPECT_GE(m.peak, 3 * kBytes);
    EXPECT_GE(m.rest(), 0);
    EXPECT_NE(m.text().find("parameters 1.0 MiB, optimizer 2.0 MiB"), std::string::npos);
  });
}

TEST_F(MonitorTest, AFolderThatCannotBeWrittenIsFoundFirst) {
  run_ranks(1, [&](World& world) {
    EXPECT_THROW(Monitor({}, {}, {.dump_folder = "/no/such", .steps = 1}, world), IoError);
    io::write_file_atomically(folder_ + "/tb", "a file");
    EXPECT_THROW(
        Monitor({.enable_tensorboard = true}, {}, {.dump_folder = folder_, .steps = 1}, world),
        IoError);
  });
}

TEST(Summary, LayersThatAreAlikeAreOneLine) {
  const Session session;
  llama3::Model model({.dim = 8,
                       .n_layers = 3,
                       .n_heads = 2,
                       .n_kv_heads = 1,
                       .ffn_dim = 16,
                       .vocab_size = 10,
                       .max_seq_len = 4});
  nn::initialize(model, 1);
  const int64_t count = nn::parameter_count(model);
  EXPECT_EQ(count_parameters(model).all, count);
  EXPECT_EQ(count_parameters(model).trained, count);
  const std::string table = layer_summary(model);
  EXPECT_NE(table.find("layers.0 to 2 (3 alike)"), std::string::npos) << table;
  EXPECT_NE(table.find("    attention.wq.weight f32[8, 8]\n"), std::string::npos) << table;
  EXPECT_EQ(table.find("layers.1"), std::string::npos);
  EXPECT_NE(table.find("tok_embeddings"), std::string::npos);
  nn::set_requires_grad(model.layers[1], false);
  EXPECT_NE(layer_summary(model).find("layers.0 to 2"), std::string::npos);
  EXPECT_NE(total_summary(model, model, 1024).find("of them trained); memory: parameters "),
            std::string::npos);
  EXPECT_NE(total_summary(model, model, 1024).find("optimizer 1.0 KiB"), std::string::npos);
}

TEST(Summary, ShardedLayersHaveTheirLayoutsAndThePlan) {
  run_fake(2, 0, [](World&) {
    const Mesh mesh = Mesh::make({{"dp_shard", 1}, {"tp", 2}});
    llama3::Model model({.dim = 8,
                         .n_layers = 3,
                         .n_heads = 2,
                         .n_kv_heads = 2,
                         .ffn_dim = 16,
                         .vocab_size = 10,
                         .max_seq_len = 4});
    nn::tensor_parallel(model, mesh, model.tensor_parallel_plan({}));
    const std::string table = layer_summary(model);
    EXPECT_NE(
        table.find("    attention.wo.weight f32[8, 8]@meta {dp_shard: Replicate(), tp: Shard(1)}"),
        table.npos)
        << table;
    EXPECT_NE(table.find("\nnorm                                           8    0.4%        32 B\n "
                         "   weight f32[8]@meta\n"),
              table.npos)
        << table;
    EXPECT_NE(table.find("\n  layers.*.attention.wo "), table.npos) << table;
  });
}

}  // namespace
}  // namespace tessera::train
