// SPDX-License-Identifier: Apache-2.0
// fully_shard: parameters, gradients and optimizer states are sharded over data-parallel ranks
// (ZeRO-3, as PyTorch's FSDP2). Each call makes one unit. Its parameters of one dtype, device and
// mesh that all need a gradient, or all need none, are one bucket: gathered by one all_gather
// before the unit runs, and their gradients reduced by one reduce_scatter in backward. With
// replicate axes (HSDP) shards are then all-reduced over the replicas. Parameters are distributed
// tensors on the mesh, outside forward too: optimizers, clipping and checkpoints see shards.
#pragma once

#include "tessera/nn/parallel/policy.h"

#include <functional>
#include <string>
#include <vector>

namespace tessera::nn {

/// The mesh axes that share the batch: over `shard` parameters are sharded, over `replicate`
/// they are equal. Outermost first; `replicate` may be empty. Name all of them: a gradient that is
/// a sum over an axis beside these is reduced apart, and only where this rank has one, so that
/// ranks of such an axis must use the same parameters.
struct DataAxes {
  std::vector<std::string> shard, replicate = {};
};

struct ShardPolicy {
  MixedPrecision precision = {};
  Reshard reshard_after_forward = Reshard::automatic;
  Accumulation accumulation = Accumulation::shards;
  /// The dim of a parameter that is sharded; default: 0.
  std::function<int(const std::string& name, const Tensor& parameter)> dim = {};
  /// Parameters that stay as they are: neither sharded nor reduced.
  std::function<bool(const std::string& name, const Tensor& parameter)> ignore = {};
};

/// Makes `modules` one unit on `mesh`: all their floating parameters, but for those of units below
/// them, so children are wrapped first and the root last. A list is gathered when its first module
/// runs, and done with its last (`{&norm, &output}`). Parameters get a Shard on the shard axes,
/// innermost in its dim (so after tensor parallelism), in place: those on the meta device stay
/// there until `initialize(model, seed)`, which makes this rank's shard only (with `laid_out(model,
/// mesh)` also replicas of what no pass laid out); those with values must be equal on all ranks.
/// Plain buffers become replicated over the mesh. Every input of the model must lie on the mesh.
/// Makes the groups of the axes, so it is called on all ranks in one order; nothing else is sent.
/// UsageError names all faults: an axis that does not exist, a number of ranks to
/// reshard among that does not divide those of the shard axes, a module wrapped twice, by another
/// pass or after its parent, a parameter without dims, of another mesh, or that another unit has
/// too (wrap a common parent). In the first forward: parameters without values.
TESSERA_API void fully_shard(std::span<Module* const> modules, Mesh mesh, const DataAxes& axes,
                             const ShardPolicy& policy = {});
TESSERA_API void fully_shard(Module& module, Mesh mesh, const DataAxes& axes,
                             const ShardPolicy& policy = {});

}  // namespace tessera::nn
