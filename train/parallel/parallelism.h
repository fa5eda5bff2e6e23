// SPDX-License-Identifier: Apache-2.0
// How the ranks of a run share its work: the degrees of the parallelisms, the mesh that they make,
// and the rows of the batch that a rank reads. These follow from its coordinates on the mesh, never
// from its rank in the world.
#pragma once

#include "tessera/dist/layout.h"
#include "tessera/dist/mesh.h"
#include "tessera/models/config/fields.h"
#include "tessera/nn/context/context_parallel.h"
#include "tessera/nn/parallel/expert_parallel.h"
#include "tessera/nn/parallel/policy.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::train {

struct TESSERA_API ParallelismConfig {
  int64_t data_parallel_replicate_degree = 1;
  int64_t data_parallel_shard_degree = -1;  ///< -1: the ranks that the other degrees leave
  int64_t context_parallel_degree = 1, context_parallel_ulysses_degree = 1;
  nn::LoadBalancer context_parallel_load_balancer = nn::LoadBalancer::head_tail;
  /// Of ranks that do not exchange heads: all_gather or ring.
  nn::ContextMethod context_parallel_rotate_method = nn::ContextMethod::all_gather;
  int64_t tensor_parallel_degree = 1;
  int64_t expert_parallel_degree = 1, expert_tensor_parallel_degree = 1;
  double expert_parallel_padding = 0;  ///< as nn::ExpertParallel
  bool enable_sequence_parallel = true, disable_loss_parallel = false;
  std::string fsdp_reshard_after_forward = "default";  ///< as nn::parse_reshard
  void fields(config::Fields& f);
  /// Faults of single fields that their limits do not tell.
  [[nodiscard]] std::vector<std::string> conflicts() const;

  /// The axes dp_replicate, dp_shard, context_axes() and tp of a mesh of `ranks` ranks, outermost
  /// first; all exist, also of size 1. ConfigError: the degrees do not multiply to `ranks`.
  [[nodiscard]] std::vector<MeshAxis> axes(int64_t ranks) const;
  /// The axes that cut sequences: `cp`, or `cp_ring` and `cp_heads` where keys go round and heads
  /// are exchanged.
  [[nodiscard]] std::vector<std::string> context_axes() const;
  /// The axes over which fully_shard cuts parameters: dp_shard and context_axes().
  [[nodiscard]] std::vector<std::string> shard_axes() const;
  /// How sequences are cut; none: they stay whole.
  [[nodiscard]] std::optional<nn::ContextParallelOptions> sequence_cut() const;
  /// The policy of fully_shard on `ranks` ranks. ConfigError: the text is none, or its number of
  /// ranks does not divide those of shard_axes().
  [[nodiscard]] nn::Reshard reshard(int64_t ranks) const;
  /// What nn::expert_parallel is to do on `ranks` ranks. ConfigError: they do not fit these.
  [[nodiscard]] nn::ExpertParallel experts(int64_t ranks) const;
  /// Into how many parts the rows of a batch are cut on `ranks` ranks; ConfigError as axes.
  [[nodiscard]] int64_t data_parts(int64_t ranks) const;
};

/// The mesh of a run: `axes` of all ranks of the world, and the products that a step sums over
/// (`dp`: tokens, `loss`: losses, `shards`: norms), with their groups; `cp` also names both of the
/// axes that cut sequences, where there are two. Collective, as Mesh::make. ConfigError as axes.
[[nodiscard]] TESSERA_API Mesh make_mesh(const ParallelismConfig& parallelism);

/// The rows of each batch that this rank reads. Ranks that differ only on other axes read the same.
struct DataShare {
  std::vector<int> axes;  ///< data axes of the mesh: those called `dp...`
  int parts = 1;          ///< product of their sizes
  int part = 0;           ///< which of them is this rank's
  Layout by_rows = {};    ///< of a batch (B, ...): dim 0 sharded over the data axes
  Layout replicated = {};
};
/// Of the calling rank.
[[nodiscard]] TESSERA_API DataShare data_share(const Mesh& mesh);

}  // namespace tessera::train
