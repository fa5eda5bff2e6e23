// SPDX-License-Identifier: Apache-2.0
// expert_parallel: the experts of a mixture are shared by ranks, and rows of tokens travel to them
// and back (Lepikhin et al., GShard, 2020). Experts need fewer axes than the layers around them, so
// they lie on another view of the same ranks, the sparse mesh: an axis `ep` that cuts the experts,
// and `efsdp`, the ranks with the same experts, over which fully_shard cuts them further. `ep`
// borrows the ranks that share data and sequences, and those of tensor parallelism unless the
// experts' hidden dim is cut over these (expert tensor parallelism).
#pragma once

#include "tessera/nn/moe/moe.h"
#include "tessera/nn/parallel/fully_shard.h"
#include "tessera/nn/parallel/replicate.h"
#include "tessera/nn/parallel/tensor_parallel.h"

#include <string>
#include <string_view>
#include <vector>

namespace tessera::nn {

/// Adds to a plan of tensor parallelism the entries of mixtures at `pattern` (`layers.*.moe`), with
/// or without shared experts. With options.expert_parallel the experts stay whole and tokens as
/// they come; otherwise the hidden dim of experts is cut, and their inputs are gathered once for
/// the router, the experts and the shared experts.
TESSERA_API void add_mixture(TensorParallelPlan& plan, std::string_view pattern,
                             bool shared_experts);

struct ExpertParallel {
  int degree = 1;         ///< ranks that share the experts
  int tensor_degree = 1;  ///< ranks that share each expert: 1, or all of the tensor axis
  double padding = 0;     ///< the factor of PaddedDispatcher; 0: ExchangeDispatcher
  /// The last axes of the mesh: those over which fully_shard cuts parameters, then tensor's.
  std::vector<std::string> data = {"dp_shard"};
  std::string tensor = "tp";
};

/// The fault of degrees for `data` x `tensor` ranks, as a sentence about the fields
/// `expert_parallel_degree`, `expert_tensor_parallel_degree` and `expert_parallel_padding`; empty:
/// none.
[[nodiscard]] TESSERA_API std::string expert_parallel_fault(const ExpertParallel& degrees,
                                                            int64_t data, int64_t tensor);
/// The numbers of experts of the mixtures below `root`, each once.
[[nodiscard]] TESSERA_API std::vector<int64_t> expert_counts(Module& root);

/// The sparse view of `mesh`: its axes before `data`, then efsdp, ep, and the tensor axis where it
/// cuts the experts' hidden dim. The ranks of `ep` are neighbours.
[[nodiscard]] TESSERA_API Mesh sparse_mesh(Mesh mesh, const ExpertParallel& degrees);

/// Gives the experts of each MoE below `root` to the ranks of `ep`, in equal parts, and exchanges
/// rows over it, as they are or padded. Their parameters become distributed on sparse_mesh, in
/// place, cut over ep and replicated on efsdp: until they are reduced (fully_shard_experts,
/// replicate_experts), gradients are Partial on the axes that do not cut them. After
/// tensor_parallel, before the passes that share data. Makes the groups of the sparse mesh, so it
/// is called on all ranks. UsageError names all faults: degrees that do not fit, axes that the mesh
/// lacks, experts that are wrapped already, a plan that cut the hidden dim with tensor_degree 1, or
/// did not with another.
TESSERA_API void expert_parallel(Module& root, Mesh mesh, const ExpertParallel& degrees);

/// fully_shard of the experts that lie on a sparse mesh, each mixture's as a unit of its own:
/// over efsdp, and over `replicate`. Without `policy.dim` they are cut on dim 1 where there are
/// more ranks than experts; a number to reshard among that does not divide efsdp is `always` for
/// them. Before the units around them are wrapped. Does nothing where there are none.
TESSERA_API void fully_shard_experts(Module& root, const std::vector<std::string>& replicate,
                                     const ShardPolicy& policy = {});
/// The same by replicate, over `axis` and efsdp.
TESSERA_API void replicate_experts(Module& root, const std::string& axis,
                                   const ReplicatePolicy& policy = {});

}  // namespace tessera::nn
