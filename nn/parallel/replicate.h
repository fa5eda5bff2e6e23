// SPDX-License-Identifier: Apache-2.0
// replicate: data parallelism with equal parameters on all ranks (PyTorch's DDP). Each call makes
// one unit, whose gradients are all-reduced as one bucket when its backward is done. Parameters lie
// on a mesh of that axis alone, and of tensor parallelism's axes where it cut them first; the
// model computes on the whole mesh.
#pragma once

#include "tessera/nn/parallel/policy.h"

#include <string>

namespace tessera::nn {

struct ReplicatePolicy {
  MixedPrecision precision = {};
  Accumulation accumulation = Accumulation::shards;  ///< `replicas` is as `whole`
};

/// Makes `modules` one unit, as fully_shard does, whose parameters are equal along `axis` of
/// `mesh`. Parameters, their gradients and optimizer states lie on the slice of `axis` and of the
/// axes over which tensor parallelism has sharded any of them.
/// Makes the group of the axis, as fully_shard does. UsageError names all faults: an axis that does
/// not exist, a module wrapped twice, by another pass or after its parent, a parameter cut over
/// `axis`, or of another unit too.
TESSERA_API void replicate(std::span<Module* const> modules, Mesh mesh, const std::string& axis,
                           const ReplicatePolicy& policy = {});
TESSERA_API void replicate(Module& module, Mesh mesh, const std::string& axis,
                           const ReplicatePolicy& policy = {});
/// UsageError: parameters are replicated along one axis; flatten several into one first, or use
/// fully_shard for shards with replicas.
TESSERA_API void replicate(Module& module, Mesh mesh, const std::vector<std::string>& axes,
                           const ReplicatePolicy& policy = {});

}  // namespace tessera::nn
