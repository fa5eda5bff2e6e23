// SPDX-License-Identifier: Apache-2.0
// Overlap of gathers and computation, proven without a clock: in each block, one rank stands still
// before it starts the gather that follows, and goes on only when the other has computed the block
// in between. A rank that waited for a gather before it needs it would stand still too.
#include "tessera/core/message.h"
#include "tessera/core/op_row.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/dtensor.h"
#include "tessera/models/data_parallel.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

namespace tessera::models {
namespace {

using Mode = nn::ActivationCheckpointConfig::Mode;

constexpr int kLayers = 4;
// Units in the order of forward: the embedding, the layers, the norm with the head.
constexpr int kUnits = kLayers + 2;

// The unit that computes an op; -1: none, as for what buckets copy.
int unit_of(const OpRow& row) {
  const std::string path = joined_path(Context::current().module_path);
  if (path == "tok_embeddings" && row.name.starts_with("embedding")) return 0;
  if (path.starts_with("layers.") && path.size() > 9) return path[7] - '0' + 1;
  if (row.name.starts_with("linear_cross_entropy")) return kUnits - 1;
  return -1;
}

// What a rank has done of a unit: of its forward (0) and of its backward (1).
using Done = std::array<std::array<std::atomic<int>, kUnits>, 2>;

class Watch {
 public:
  using Look = std::function<void(int pass, int unit, bool first)>;
  explicit Watch(Done& done, Look look = {}) {
    Context::current().op_hook = [&done, look](const OpRow& row, const void*, Tensors, Tensors) {
      const int unit = unit_of(row), pass = trace_tag() == "grad";
      if (unit < 0) return;
      const bool first =
          done[static_cast<size_t>(pass)][static_cast<size_t>(unit)].fetch_add(1) == 0;
      if (look) look(pass, unit, first);
    };
  }
  ~Watch() { Context::current().op_hook = nullptr; }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
};

void check(const nn::ActivationCheckpointConfig& checkpoint, nn::Reshard reshard) {
  Done ops{}, ahead{};  // of a whole step; of rank 0 in the second one
  std::atomic<int> holds{0}, given_up{0};
  test::on_ranks(2, [&](World& world) {
    const Mesh mesh = Mesh::make({{"dp_replicate", 1}, {"dp_shard", 2}, {"tp", 1}});
    llama3::Model model({.dim = 16,
                         .n_layers = kLayers,
                         .n_heads = 2,
                         .n_kv_heads = 1,
                         .ffn_dim = 24,
                         .vocab_size = 31,
                         .max_seq_len = 8});
    nn::apply_activation_checkpoint(model.units(), checkpoint);
    fully_shard(model, mesh, {{"dp_shard"}, {}}, {.reshard_after_forward = reshard});
    nn::initialize(model, 5, nn::laid_out(model, mesh));
    const Metadata metadata = model.metadata(6);
    const auto step = [&] {
      const Tensor tokens =
          distribute(full({4, 6}, 3, DType::i64), Layout::of(mesh, {{"dp_shard", Shard(0)}}));
      backward(model.loss(tokens, tokens, metadata).sum);
    };
    const bool leads = world.rank() == 0;
    Done own{};
    {
      const Watch watch(leads ? ops : own);
      step();
    }
    world.group().barrier()->wait();
    const CommTrace trace;
    const auto launched = [&](int pass, int unit, bool first) {
      if (!first) return;
      // Its own gather and the next one's: in backward the head's was never freed.
      const int want = pass == 0 ? std::min(unit + 2, kUnits) : std::min(kUnits - unit, kUnits - 1);
      const bool gathers = pass == 0 || reshard != nn::Reshard::never;
      EXPECT_EQ(trace.count("all_gather", pass ? "grad" : "forward"), gathers ? want : 0)
          << "pass " << pass << ", unit " << unit;
    };
    const auto holds_back = [&](int pass, int unit, bool first) {
      const int between = pass == 0 ? unit + 1 : unit - 1;  // its gather has been started
      if (!first || between < 1 || between > kLayers || given_up > 0) return;
      ++holds;
      const auto p = static_cast<size_t>(pass), u = static_cast<size_t>(between);
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (ahead[p][u] < ops[p][u]) {
        if (std::chrono::steady_clock::now() > limit) {
          ++given_up;
          ADD_FAILURE() << "rank 0 computed " << ahead[p][u] << " of " << ops[p][u]
                        << " ops of unit " << u << " in pass " << p
                        << ", then it waited for the gather after it";
          return;
        }
        if (Progress* progress = Context::current().progress) progress->poll();
        std::this_thread::yield();
      }
    };
    Done again{};
    const Watch watch(leads ? ahead : again,
                      leads ? Watch::Look(launched) : Watch::Look(holds_back));
    step();
    world.group().barrier()->wait();
  });
  EXPECT_EQ(holds, 2 * kLayers);
  EXPECT_EQ(given_up, 0);
}

TEST(Prefetch, ABlockIsComputedBeforeTheGatherAfterItIsWaitedFor) {
  check({}, nn::Reshard::automatic);
  check({}, nn::Reshard::never);
  check({.mode = Mode::full}, nn::Reshard::automatic);
}

}  // namespace
}  // namespace tessera::models
