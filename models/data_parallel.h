// SPDX-License-Identifier: Apache-2.0
// Data parallelism of a whole model: which of its modules are units, children first. The passes
// themselves are nn's.
#pragma once

#include "tessera/models/model.h"
#include "tessera/nn/parallel/fully_shard.h"
#include "tessera/nn/parallel/replicate.h"

#include <string>

namespace tessera::models {

/// nn::fully_shard on each of model.data_parallel_units(), then on the model, whose unit has what
/// is left (tied embeddings). Experts that expert_parallel laid on a mesh of their own are units
/// there. Errors as there.
TESSERA_API void fully_shard(LanguageModel& model, Mesh mesh, const nn::DataAxes& axes,
                             const nn::ShardPolicy& policy = {});
/// The same by nn::replicate.
TESSERA_API void replicate(LanguageModel& model, Mesh mesh, const std::string& axis,
                           const nn::ReplicatePolicy& policy = {});

}  // namespace tessera::models
