// SPDX-License-Identifier: Apache-2.0
// The memory of a step whose sequences are cut over four ranks: a quarter of what one rank needs.
// Counted is everything beside the parameters, at the allocator's peak: activations, the metadata
// of the batch, what goes round the ring or is gathered, and gradients, which are small here.
#include "tessera/core/context.h"
#include "tessera/dist/dtensor.h"
#include "tessera/models/data_parallel.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/nn/context/context_parallel.h"
#include "tessera/tests/support/cut_batch.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

namespace tessera::models {
namespace {

using nn::ContextMethod;

constexpr int kRanks = 4;

// Bytes of a step of one sequence at its peak, on the rank that needs most; plain on one rank.
int64_t peak(int64_t length, int ranks, const nn::ContextParallelOptions& options = {}) {
  std::vector<int64_t> peaks(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](World& world) {
    // The proportions of the debug model.
    llama3::Model model({.dim = 64,
                         .n_layers = 6,
                         .n_heads = 4,
                         .n_kv_heads = 4,
                         .ffn_dim = 192,
                         .vocab_size = 64,
                         .max_seq_len = length});
    const Ref<Allocator>& memory = world.session().context().allocator(kCpu);
    const auto step = [&](const auto& tokens, const auto& metadata) {
      backward(model.loss(tokens, tokens, metadata).sum);
    };
    const auto counted = [&](auto&& f) {
      const int64_t held = memory->stats().live;
      memory->reset_peak();
      f();
      peaks[static_cast<size_t>(world.rank())] = memory->stats().peak - held;
    };
    const Tensor ids = full({1, length}, 3, DType::i64);
    if (ranks == 1) {
      nn::initialize(model, 5);
      counted([&] { step(ids, model.metadata(length)); });
      return;
    }
    const Mesh mesh = test::CutBatch::made(options);
    fully_shard(model, mesh, {options.axes});
    nn::initialize(model, 5, nn::laid_out(model, mesh));
    counted([&] {
      Metadata metadata = model.metadata(length);
      const nn::SequenceCut cut(options, Layout::replicated(mesh), {1, length}, metadata.of());
      for (nn::AttentionMetadata& kind : metadata.kinds) kind = cut.metadata(kind);
      step(cut.cut(ids), metadata);
    });
  });
  return std::ranges::max(peaks);
}

TEST(ContextMemory, OfARankIsItsShareOfTheSequence) {
  const int64_t length = test::long_form() ? 32 * 1024 : 2048;
  const auto one = static_cast<double>(peak(length, 1));
  for (const auto method : {ContextMethod::all_gather, ContextMethod::ring, ContextMethod::ulysses,
                            ContextMethod::ring_ulysses}) {
    const auto each = static_cast<double>(peak(length, kRanks, test::context_options(method)));
    EXPECT_NEAR(kRanks * each / one, 1, 0.1) << method;
    std::cout << method << ", " << length << " tokens: one rank " << one / 1e6 << " MB, each of "
              << kRanks << ' ' << each / 1e6 << " MB, a share of " << each / one << std::endl;
  }
}

}  // namespace
}  // namespace tessera::models
