// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/data_parallel.h"

#include "tessera/nn/parallel/expert_parallel.h"

namespace tessera::models {

void fully_shard(LanguageModel& model, Mesh mesh, const nn::DataAxes& axes,
                 const nn::ShardPolicy& policy) {
  nn::fully_shard_experts(model, axes.replicate, policy);
  for (const auto& unit : model.data_parallel_units()) nn::fully_shard(unit, mesh, axes, policy);
  nn::fully_shard(model, mesh, axes, policy);
}

void replicate(LanguageModel& model, Mesh mesh, const std::string& axis,
               const nn::ReplicatePolicy& policy) {
  nn::replicate_experts(model, axis, policy);
  for (const auto& unit : model.data_parallel_units()) nn::replicate(unit, mesh, axis, policy);
  nn::replicate(model, mesh, axis, policy);
}

}  // namespace tessera::models
