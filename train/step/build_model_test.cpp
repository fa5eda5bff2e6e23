// SPDX-License-Identifier: Apache-2.0
// The fields of parallelism, by what the step of a model that was built from them sends.
#include "tessera/train/step/build_model.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/train/step/evaluate.h"
#include "tessera/train/step/run_parts.h"

#include <algorithm>

namespace tessera::train {
namespace {

using Entries = std::vector<CommEntry>;
using EvaluationTest = test::FolderTest;

// What rank 0 sends in the second step, which knows the order of the units.
Entries sent(int ranks, const Words& more) {
  const Config config = parse_config(joined(tiny_model(), more));
  Entries all;
  const auto on_rank = [&](World& world) {
    const Mesh mesh = Mesh::make(config.parallelism.axes(world.size()));
    const auto model =
        build_model(config, mesh, [](models::LanguageModel& m, const nn::LayoutOf& layouts) {
          nn::initialize(m, 5, layouts);
        });
    const Tensor ids = distribute(full({4, 6}, 3, DType::i64), data_share(mesh).by_rows);
    const models::Metadata metadata = model->metadata(6);
    const auto step = [&] { backward(model->loss(ids, ids, metadata).sum); };
    step();
    const CommTrace trace;
    step();
    if (world.rank() == 0) all.assign(trace.entries().begin(), trace.entries().end());
  };
  run_ranks(ranks, on_rank, world_options(config));
  return all;
}

// Empty: any.
int64_t count(const Entries& all, std::string_view op, std::string_view axes, std::string_view tag,
              std::string_view path = {}) {
  return std::ranges::count_if(all, [&](const CommEntry& e) {
    return e.op == op && e.axes == axes && e.tag == tag && (path.empty() || e.path == path);
  });
}

TEST(BuildModel, SequenceAndLossParallelFollowTheirFields) {
  const Words tensor{"--parallelism.tensor_parallel_degree", "2"};
  const auto with = [&](const Words& more) { return sent(2, joined(tensor, more)); };
  // Two sums of each of two layers, and the embedding's.
  const Entries both = with({});
  EXPECT_EQ(count(both, "reduce_scatter", "tp", "forward"), 5);
  EXPECT_EQ(count(both, "all_reduce", "tp", "forward"), 3);
  EXPECT_EQ(count(both, "all_reduce", "tp", "forward", "output"), 3);
  const Entries whole_rows = with({"--parallelism.no-enable_sequence_parallel"});
  EXPECT_EQ(count(whole_rows, "reduce_scatter", "tp", "forward"), 0);
  EXPECT_EQ(count(whole_rows, "all_reduce", "tp", "forward"), 5 + 3);
  const Entries whole_head = with({"--parallelism.disable_loss_parallel"});
  EXPECT_EQ(count(whole_head, "reduce_scatter", "tp", "forward"), 5);
  EXPECT_EQ(count(whole_head, "all_reduce", "tp", "forward"), 0);
}

TEST(BuildModel, ReshardingFollowsItsField) {
  const auto with = [](const char* text) {
    return sent(4, {"--parallelism.fsdp_reshard_after_forward", text});
  };
  // The embedding, two layers, the norm with the head; nothing is left to the root.
  const Entries automatic = with("default"), always = with("always"), never = with("never"),
                halves = with("2");
  for (const Entries& e : {automatic, always, never, halves})
    EXPECT_EQ(count(e, "all_gather", "dp_shard,cp", "forward"), 4);
  EXPECT_EQ(count(automatic, "all_gather", "dp_shard,cp", "grad"), 3);
  EXPECT_EQ(count(always, "all_gather", "dp_shard,cp", "grad"), 4);
  EXPECT_EQ(count(never, "all_gather", "dp_shard,cp", "grad"), 0);
  EXPECT_EQ(count(halves, "all_gather", "dp_shard,cp", "grad"), 0);
  EXPECT_EQ(count(halves, "all_gather", "dp_shard,cp:2", "grad"), 4);
}

// Micro-batches of whole sequences share it.
TEST(BatchPlacer, ACutIsMadeAgainForOtherDocumentsAlone) {
  const Config config =
      parse_config(joined(tiny_model(), {"--parallelism.context_parallel_degree", "2"}));
  const auto on_rank = [&](World&) {
    const Mesh mesh = make_mesh(config.parallelism);
    const models::Metadata whole{{{}, {.mask = AttentionMask::causal()}}};
    BatchPlacer placer(whole, data_share(mesh), kCpu, config.parallelism.sequence_cut());
    const auto ids = [](double value, int64_t length) {
      return full({3, length}, value, DType::i64);
    };
    const auto cut_of = [&](const Batch& rows) {
      const PlacedBatch placed = placer.place(rows);
      EXPECT_EQ(placed.tokens.shape(), rows.tokens.shape());
      EXPECT_EQ(full_tensor(placed.tokens).values(), rows.tokens.values());
      return placed.metadata.of(1).cut;
    };
    const auto first = cut_of({ids(1, 7), ids(2, 7)});
    EXPECT_EQ(cut_of({ids(3, 7), ids(4, 7)}), first);
    EXPECT_NE(cut_of({ids(3, 5), ids(4, 5)}), first);
    const auto packed = cut_of({ids(3, 7), ids(4, 7), ids(5, 7), ids(6, 7)});
    EXPECT_NE(packed, first);
    EXPECT_EQ(cut_of({ids(0, 7), ids(4, 7), ids(5, 7), ids(6, 7)}), packed);
    const auto others = cut_of({ids(3, 7), ids(4, 7), ids(5, 7), ids(8, 7)});
    EXPECT_NE(others, packed);
    EXPECT_NE(cut_of({ids(3, 7), ids(4, 7), ids(9, 7), ids(8, 7)}), others);
  };
  run_ranks(2, on_rank, world_options(config));
}

TEST_F(EvaluationTest, IsOfAModelOnAMesh) {
  const Session session;
  const Config config = parse_config(tiny_model());
  const auto model = config.model.make();
  nn::initialize(*model, 5);
  DataLoader data({.path = put("a.txt", "text of some tokens")},
                  {.seq_len = 4, .vocabulary = 260, .evaluation = true});
  EXPECT_EQ(test::error_of<UsageError>([&] { (void)evaluate(*model, data, -1, {}); }),
            "[evaluate] the model's parameters are plain: lay them out on a mesh, of one rank too");
}

}  // namespace
}  // namespace tessera::train
