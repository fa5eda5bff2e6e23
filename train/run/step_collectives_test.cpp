// SPDX-License-Identifier: Apache-2.0
// What a whole step of the trainer sends, each collective counted by kind and group: the passes'
// of models/collectives_test.cpp, and what a step adds whatever the number of ranks, parameters and
// micro-batches: a sum of token counts, one of losses, one of the gradient norm.
#include "tessera/dist/launch/run.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/tests/support/tiny_experts.h"
#include "tessera/train/run/trainer.h"

#include <map>

namespace tessera::train {
namespace {

constexpr int kLayers = 2, kUnits = kLayers + 2;  // the embedding; the last norm with the head

using Counts = std::map<std::string, int>;  // by kind and group

struct Way {
  std::string name;
  int ranks;
  Words words;
  Counts sent;
};

class StepCollectives : public TinyRunTest {
 protected:
  // A step like all after the first, on every rank.
  void expect_sent(const Way& way) const {
    SCOPED_TRACE(way.name);
    const Config c =
        config(way.name, joined({"--checkpoint.enable", "false", "--metrics.measure_ceiling",
                                 "false", "--training.mixed_precision_param", "float32"},
                                way.words));
    const auto on_rank = [&](World& world) {
      Trainer trainer(c);
      (void)trainer.step();
      const FlightRecorder& recorder = world.group().recorder();
      uint64_t first = recorder.count();
      (void)trainer.step();
      Counts sent;
      for (const FlightRecorder::Operation& o : recorder.ended_since(first))
        ++sent[concat(o.kind, ' ', o.group)];
      EXPECT_EQ(sent, way.sent) << "rank " << world.rank();
    };
    run_ranks(way.ranks, on_rank, world_options(c));
  }
};

// Of two rows on each rank.
Words micro_batches(int count, int data_ranks) {
  return {"--training.global_batch_size", std::to_string(2 * count * data_ranks)};
}

const std::string kGather = "all_gather dp_shard,cp (gather)";

TEST_F(StepCollectives, OfShardedParameters) {
  const std::string reshard = "--parallelism.fsdp_reshard_after_forward";
  for (const int ranks : {2, 4}) {
    for (const int n : {1, 3}) {
      const auto expect = [&](const char* policy, int gathers) {
        expect_sent(
            {concat(policy, ranks, n),
             ranks,
             joined({reshard, policy}, micro_batches(n, ranks)),
             {{kGather, gathers}, {"reduce_scatter world", n * kUnits}, {"all_reduce world", 3}}});
      };
      expect("default", n * (2 * kUnits - 1));  // the last unit is still there in backward
      expect("always", n * 2 * kUnits);
      expect("never", n * kUnits);  // until the end of backward
    }
  }
}

// Gradients are reduced over replicas once, after the last micro-batch.
TEST_F(StepCollectives, OfReplicas) {
  const Words replicas{"--parallelism.data_parallel_replicate_degree", "2"};
  for (const int n : {1, 3}) {
    expect_sent({concat("replicas", n),
                 2,
                 joined(replicas, micro_batches(n, 2)),
                 {{"all_reduce world", kUnits + 2}}});  // each has the whole norm
    expect_sent({concat("hybrid", n),
                 4,
                 joined(replicas, micro_batches(n, 4)),
                 {{kGather, n * (2 * kUnits - 1)},
                  {"reduce_scatter dp_shard", n * kUnits},
                  {"all_reduce dp_replicate", kUnits},
                  {"all_reduce dp_shard", 1},
                  {"all_reduce world", 2}}});
  }
}

TEST_F(StepCollectives, OfTensorParallelism) {
  const Words tensor{"--parallelism.tensor_parallel_degree", "2"};
  // Into and out of attention and feed-forward of each layer, in both directions.
  constexpr int kSums = 2 * kLayers, kHead = 3;
  for (const int n : {1, 3}) {
    const Words cut = joined(tensor, micro_batches(n, 1));
    expect_sent({concat("sequences", n),
                 2,
                 cut,
                 {{"reduce_scatter world", n * (2 * kSums + 1)},  // and out of the embedding
                  {"all_gather world", n * (2 * kSums + 2)},      // and to the head, in both
                  {"all_reduce world", n * (kHead + 3) + 1},
                  {"all_reduce dp_replicate,dp_shard", 1}}});
    expect_sent({concat("rows", n),
                 2,
                 joined(cut, {"--parallelism.no-enable_sequence_parallel"}),
                 {{"all_reduce world", n * (2 * kSums + 1 + kHead) + 1},
                  {"all_reduce dp_replicate,dp_shard", 1}}});
  }
}

// The load of their routers, and whether it is finite, are a sum each.
TEST_F(StepCollectives, OfExperts) {
  for (const int n : {1, 3}) {
    expect_sent({concat("experts", n),
                 2,
                 joined(tiny_experts(), micro_batches(n, 2)),
                 {{kGather, n * (2 * kUnits - 1)},
                  {"reduce_scatter world", n * kUnits},
                  {"all_reduce world", 3 + 2}}});
  }
}

}  // namespace
}  // namespace tessera::train
