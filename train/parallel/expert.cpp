// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/parallel/expert.h"

#include "tessera/core/message.h"
#include "tessera/models/config/collect_impl.h"
#include "tessera/train/parallel/parallelism.h"

namespace tessera::train {
namespace {

Faults conflicts(const ParallelismConfig& p) {
  if (p.expert_parallel_padding == 0 || p.expert_parallel_degree != 1) return {};
  return {concat("[--parallelism.expert_parallel_padding] ", p.expert_parallel_padding,
                 ": no tokens travel with expert_parallel_degree 1; leave it out, or give a degree "
                 "above 1")};
}

Faults faults(const PassFacts& facts) {
  Faults faults;
  const int64_t ep = facts.parallelism.expert_parallel_degree;
  if (ep > 1 && facts.model) {
    const std::vector<int64_t> counts = nn::expert_counts(*facts.model);
    if (counts.empty()) {
      faults.push_back(concat("[--parallelism.expert_parallel_degree] ", ep,
                              ": the model has no experts; leave it out"));
    }
    for (const int64_t n : counts) {
      if (n % ep == 0) continue;
      faults.push_back(concat("[--parallelism.expert_parallel_degree] ", ep,
                              " does not divide the ", counted(n, "expert"),
                              " of a layer: give a degree that does"));
    }
  }
  if (facts.ranks > 0)
    config::collect(faults, [&] { (void)expert_degrees(facts.parallelism, facts.ranks); });
  return faults;
}

void apply(models::LanguageModel& part, const PassSettings& settings, const Mesh& mesh) {
  const nn::ExpertParallel degrees = expert_degrees(settings.parallelism, mesh.size());
  if (degrees.degree > 1) nn::expert_parallel(part, mesh, degrees);
}

}  // namespace

void ExpertParallel::Fields::fields(config::Fields& f) {
  f.add("expert_parallel_degree", expert_parallel_degree,
        "ranks that share the experts of a layer, to which tokens travel; they are those of "
        "data_parallel_shard_degree, context_parallel_degree and tensor_parallel_degree",
        {.min = 1, .max = 1 << 20, .unit = "ranks"});
  f.add("expert_tensor_parallel_degree", expert_tensor_parallel_degree,
        "ranks that share each expert, where expert_parallel_degree is above 1: 1, or "
        "tensor_parallel_degree; without expert parallelism it is always the latter",
        {.min = 1, .max = 1 << 20, .unit = "ranks"});
  f.add(
      "expert_parallel_padding", expert_parallel_padding,
      "0: as many tokens travel to each expert as chose it; above: each rank sends every expert a "
      "buffer of this times an even part of its tokens, so that all sizes are fixed and none is "
      "read on the host; unused places travel and are computed as zeros, and tokens that find no "
      "place are dropped (moe/layer_N/dropped), in evaluation too; num_experts / top_k holds all",
      {.min = 0, .max = 1e6});
}

ParallelPass ExpertParallel::row() {
  return {.conflicts = conflicts, .faults = faults, .apply = apply};
}

nn::ExpertParallel expert_degrees(const ParallelismConfig& p, int64_t ranks) {
  nn::ExpertParallel degrees{.degree = static_cast<int>(p.expert_parallel_degree),
                             .tensor_degree = static_cast<int>(p.expert_tensor_parallel_degree),
                             .padding = p.expert_parallel_padding,
                             .data = p.axes_that(&PassAxis::shards_parameters)};
  const std::string fault = nn::expert_parallel_fault(
      degrees, p.ranks_of(ranks, &PassAxis::shards_parameters), p.tensor_parallel_degree);
  if (!fault.empty()) fail<ConfigError>("--parallelism", fault);
  if (degrees.degree == 1) degrees.tensor_degree = static_cast<int>(p.tensor_parallel_degree);
  return degrees;
}

}  // namespace tessera::train
