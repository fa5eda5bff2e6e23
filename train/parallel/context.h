// SPDX-License-Identifier: Apache-2.0
// Context parallelism: ranks share each sequence and read the same rows. The model stays as it is;
// batches are cut (ParallelismConfig::sequence_cut), by training, evaluation and generation alike.
#pragma once

#include "tessera/models/config/fields.h"
#include "tessera/nn/context/context_parallel.h"
#include "tessera/train/parallel/pass.h"

#include <optional>

namespace tessera::train {

struct TESSERA_API ContextParallel {
  struct TESSERA_API Fields {
    int64_t context_parallel_degree = 1, context_parallel_ulysses_degree = 1;
    nn::LoadBalancer context_parallel_load_balancer = nn::LoadBalancer::head_tail;
    /// Of ranks that do not exchange heads: all_gather or ring.
    nn::ContextMethod context_parallel_rotate_method = nn::ContextMethod::all_gather;
    void fields(config::Fields& f);
    /// The axes that cut sequences: `cp`, or `cp_ring` and `cp_heads` where keys go round and heads
    /// are exchanged.
    [[nodiscard]] std::vector<std::string> context_axes() const;
    /// How sequences are cut; none: they stay whole.
    [[nodiscard]] std::optional<nn::ContextParallelOptions> sequence_cut() const;
    /// Whether a rank has its tokens in another order than the sequence.
    [[nodiscard]] bool moves_tokens() const;
  };
  static ParallelPass row();
};

}  // namespace tessera::train
