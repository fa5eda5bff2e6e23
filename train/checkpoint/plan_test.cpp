// SPDX-License-Identifier: Apache-2.0
// Who writes what: every element once, by a rank that holds it, and evenly.
#include "tessera/train/checkpoint/plan.h"

#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/models/data_parallel.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/nn/lay_out.h"
#include "tessera/tests/support/all_layouts.h"
#include "tessera/tests/support/trials.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <random>
#include <set>

namespace tessera::train {
namespace {

std::vector<int64_t> bytes_of_ranks(const std::vector<PlannedTensor>& plan, int world) {
  std::vector<int64_t> bytes(static_cast<size_t>(world));
  for (const PlannedTensor& t : plan) {
    for (const PlannedChunk& c : t.chunks)
      bytes[static_cast<size_t>(c.writer)] += c.box.numel() * item_size(t.dtype);
  }
  return bytes;
}

TEST(Boxes, PiecesAreRunsThatCoverABoxOnce) {
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    Box box;
    const int rank = static_cast<int>(random() % 5);
    for (int d = 0; d < rank; ++d) {
      box.begin.push_back(static_cast<int64_t>(random() % 3));
      box.size.push_back(static_cast<int64_t>(random() % 6));
    }
    const auto most = static_cast<int64_t>(1 + random() % 200);
    int64_t at = 0;
    for (const Box& piece : pieces_of(box, DType::f32, most)) {
      EXPECT_EQ(offset_in(box, piece), at);  // one behind the other
      at += piece.numel();
      EXPECT_EQ(overlap(box, piece), piece);
      EXPECT_LE(piece.numel() * 4, std::max<int64_t>(most, 4));
    }
    EXPECT_EQ(at, box.numel());
  }
}

TEST(Boxes, CoversAreJudged) {
  using Boxes = std::vector<Box>;
  EXPECT_FALSE(cover_fault({}, {{}}));
  EXPECT_EQ(cover_fault({}, {})->missing, 1);
  EXPECT_EQ(cover_fault({}, Boxes{{}, {}})->second, 1u);
  EXPECT_FALSE(cover_fault({0, 3}, {}));
  EXPECT_FALSE(cover_fault({3, 2}, Boxes{{{1, 0}, {2, 2}}, {{0, 0}, {1, 2}}}));
  EXPECT_EQ(cover_fault({3, 2}, Boxes{{{1, 0}, {2, 2}}, {{0, 0}, {1, 1}}})->missing, 1);
  const auto both =
      cover_fault({3, 2}, Boxes{{{2, 0}, {1, 2}}, {{0, 0}, {3, 1}}, {{0, 1}, {2, 1}}});
  EXPECT_EQ(both->first, 0u);
  EXPECT_EQ(both->second, 1u);
}

// On every layout of a mesh, and with uneven sizes, rank by rank.
TEST(Plan, EachElementIsWrittenOnceByARankThatHoldsIt) {
  std::mutex mutex;
  std::vector<std::vector<Box>> held(6);  // by rank, the box of each tensor
  std::vector<PlannedTensor> plan;
  run_ranks(6, [&](World& world) {
    const Mesh mesh = Mesh::make({{"a", 2}, {"b", 3}});
    std::vector<nn::NamedParameter> tensors{{"plain", empty({50, 7})}, {"none", empty({0, 4})}};
    for (const Shape& shape : {Shape{7, 5}, Shape{1, 4}, Shape{2, 3}}) {
      for (const AxisStates& states : trial::all_layouts(mesh, 2, {})) {
        const Layout layout = Layout::intern(mesh, states);
        tensors.push_back(
            {concat("t", tensors.size()),
             wrap_local(empty(layout.local_shape(shape), DType::bf16), layout, shape)});
      }
    }
    Holdings own;
    own.add("model", tensors, world.size());
    const std::scoped_lock lock(mutex);
    for (const auto& t : tensors)
      held[static_cast<size_t>(world.rank())].push_back(own_box(t.tensor));
    if (world.rank() == 0) {
      const Holdings same = Holdings::parse(own.text());
      EXPECT_EQ(same.text(), own.text());
      plan = plan_chunks(std::span(&same, 1), world.size());
    }
  });
  EXPECT_GT(plan.size(), 30u);
  for (size_t i = 0; i < plan.size(); ++i) {
    std::vector<Box> boxes;
    for (const PlannedChunk& c : plan[i].chunks) {
      boxes.push_back(c.box);
      EXPECT_EQ(overlap(held[static_cast<size_t>(c.writer)][i], c.box), c.box);
    }
    EXPECT_FALSE(cover_fault(plan[i].shape, boxes)) << plan[i].name;
  }
}

TEST(Plan, ReplicasShareTheWriting) {
  Holdings own;
  own.meshes = {{{4}, {0, 1, 2, 3}}};
  for (int i = 0; i < 9; ++i)
    own.tensors.push_back({"model", concat("w", i), DType::f32, {1000 + 7 * i, 64}});
  own.tensors.push_back({"model", "bias", DType::f32, {3}});
  const auto plan = plan_chunks(std::span(&own, 1), 4);
  const auto bytes = bytes_of_ranks(plan, 4);
  const auto [least, most] = std::ranges::minmax(bytes);
  EXPECT_LE(most - least, 2 * 64 * 4) << "more than a row or two apart";
}

// Stages that hold different tensors, one of them shared.
TEST(Plan, RanksMayHoldDifferentTensors) {
  std::vector<Holdings> stages(2);
  for (int s = 0; s < 2; ++s) {
    auto& stage = stages[static_cast<size_t>(s)];
    stage.meshes = {{{2}, {2 * s, 2 * s + 1}}};
    stage.tensors = {{"model", "tied", DType::f32, {40'000, 2}},
                     {"model", concat("layer", s), DType::f32, {6, 4}}};
  }
  auto plan = plan_chunks(stages, 4);
  ASSERT_EQ(plan.size(), 3u);
  std::set<int> writers;
  for (const auto& c : plan[0].chunks) writers.insert(c.writer);
  EXPECT_EQ(writers, (std::set<int>{0, 1, 2, 3}));
  EXPECT_LE(plan[1].chunks[0].writer, 1);
  EXPECT_GE(plan[2].chunks[0].writer, 2);
  stages[1].tensors[0].dtype = DType::bf16;
  const auto error = trial::error_of<DataError>([&] { (void)plan_chunks(stages, 4); });
  TESSERA_EXPECT_HOLDS(error, "ranks hold tied as f32[40000, 2] of the model and as bf16");
}

TEST(Plan, WhatCannotBeSavedIsNamed) {
  run_ranks(2, [&](World&) {
    const Layout partial = Layout::of(Mesh::make({{"dp", 2}}), {Partial()});
    Holdings own;
    TESSERA_EXPECT_HOLDS(trial::error_of<LayoutError>([&] {
                           own.add("model", {{"w", wrap_local(empty({2}), partial, {2})}}, 2);
                         }),
                         "w is {dp: Partial()}: no rank holds its values");
    TESSERA_EXPECT_HOLDS(trial::error_of<UsageError>([&] {
                           own.add("model", {{"b", empty({2})}, {"b", empty({2})}}, 2);
                         }),
                         "two tensors are named b");
  });
}

TEST(Plan, ATensorLiesOnRanksOfTheWorld) {
  const Holdings held{.meshes = {{{1}, {2}}}, .tensors = {{"model", "w", DType::f32, {2}}}};
  EXPECT_EQ(trial::error_of<DataError>([&] { (void)plan_chunks(std::span(&held, 1), 2); }),
            "[checkpoint] w lies on rank 2 of 2");
}

// A billion parameters and their two moments, on meshes of 1,024 ranks.
TEST(Plan, ABillionParametersOnAThousandRanksAreSharedOutEvenly) {
  const llama3::Config config{.dim = 2048,
                              .n_layers = 16,
                              .n_heads = 32,
                              .n_kv_heads = 32,  // rows that the ranks divide
                              .ffn_dim = 8192,
                              .vocab_size = 131'072,
                              .max_seq_len = 8192};
  constexpr int kRanks = 1024;
  struct Axes {
    int replicate, shard;
  };
  for (const auto& [replicate, shard] : {Axes{1, 1024}, Axes{8, 128}, Axes{1024, 1}}) {
    run_fake(kRanks, 3, [&, replicate = replicate, shard = shard](World&) {
      const Mesh mesh = Mesh::make({{"dp_replicate", replicate}, {"dp_shard", shard}});
      llama3::Model model(config);
      models::fully_shard(model, mesh, {{"dp_shard"}, {"dp_replicate"}}, {});
      nn::lay_out(model, nn::laid_out(model, mesh));
      const auto start = std::chrono::steady_clock::now();
      std::vector<nn::NamedParameter> parameters = nn::named_parameters(model), moments;
      int64_t total = 0;
      for (const auto& [name, t] : parameters) {
        total += t.numel();
        moments.push_back({name + ".exp_avg", t});
        moments.push_back({name + ".exp_avg_sq", t});
      }
      EXPECT_GT(total, 1'000'000'000);
      Holdings own;
      own.add("model", parameters, kRanks);
      own.add("optimizer", moments, kRanks);
      const auto plan = plan_chunks(std::span(&own, 1), kRanks);
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      const auto bytes = bytes_of_ranks(plan, kRanks);
      const auto [least, most] = std::ranges::minmax(bytes);
      size_t chunks = 0;
      for (const auto& t : plan) chunks += t.chunks.size();
      EXPECT_LE(static_cast<double>(most), 1.01 * static_cast<double>(total) * 12 / kRanks);
      EXPECT_GE(static_cast<double>(least), 0.99 * static_cast<double>(total) * 12 / kRanks);
      std::cout << total << " parameters on " << replicate << " x " << shard << " ranks: " << chunks
                << " chunks, " << least << " to " << most << " bytes per rank, planned in "
                << seconds << " s\n";
    });
  }
}

}  // namespace
}  // namespace tessera::train
