// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/parallel/tensor.h"

#include "tessera/models/config/collect_impl.h"
#include "tessera/nn/parallel/tensor_parallel.h"
#include "tessera/train/parallel/parallelism.h"

namespace tessera::train {
namespace {

std::vector<PassAxis> axes(const ParallelismConfig& p) {
  return {{.name = "tp",
           .field = "tensor_parallel_degree",
           .ranks = p.tensor_parallel_degree,
           .splits_layers = true}};
}

// The numbers that the degree must divide come from the family's plan, which the model tells.
Faults faults(const PassFacts& facts) {
  const int64_t tp = facts.parallelism.tensor_parallel_degree;
  if (tp <= 1 || !facts.model) return {};
  Faults faults;
  config::collect<UsageError>(faults, [&] {  // the family may have no plan
    const nn::TensorParallelPlan plan = facts.model->tensor_parallel_plan({});
    for (const auto& d : plan.divided) {
      if (d.fits(tp)) continue;
      faults.push_back(concat("[--parallelism.tensor_parallel_degree] ", tp, " does not divide --",
                              d.field, ' ', d.number, d.copied ? " and is no multiple of it" : "",
                              ": give a degree that does"));
    }
  });
  return faults;
}

void apply(models::LanguageModel& part, const PassSettings& settings, const Mesh& mesh) {
  const ParallelismConfig& p = settings.parallelism;
  if (mesh.size("tp") == 1) return;
  const bool apart = expert_degrees(p, mesh.size()).tensor_degree != mesh.size("tp");
  nn::tensor_parallel(part, mesh,
                      part.tensor_parallel_plan({.sequence_parallel = p.enable_sequence_parallel,
                                                 .loss_parallel = !p.disable_loss_parallel,
                                                 .expert_parallel = apart}));
}

}  // namespace

void TensorParallel::Fields::fields(config::Fields& f) {
  f.add("tensor_parallel_degree", tensor_parallel_degree,
        "ranks that share each layer's matmuls and read the same rows",
        {.min = 1, .max = 1 << 20, .unit = "ranks"});
  f.add("enable_sequence_parallel", enable_sequence_parallel,
        "tensor parallel: shard activations between layers over the sequence; false: replicate "
        "them");
  f.add("disable_loss_parallel", disable_loss_parallel,
        "tensor parallel: gather the logits for the loss instead of sharding the vocabulary");
}

ParallelPass TensorParallel::row() { return {.axes = axes, .faults = faults, .apply = apply}; }

}  // namespace tessera::train
