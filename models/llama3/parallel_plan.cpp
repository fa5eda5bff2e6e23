// SPDX-License-Identifier: Apache-2.0
// How tensor parallelism shards llama3. Norms work on the activations between layers; attention and
// feed-forward gather them, and reduce their results.
#include "tessera/models/llama3/llama3.h"

namespace tessera::llama3 {

nn::TensorParallelPlan Model::tensor_parallel_plan(const nn::TensorParallelOptions& options) const {
  const Placement stream = options.stream();
  nn::TensorParallelPlan plan{.options = options};
  plan.divided = {{"model.n_heads", config_.n_heads}, {"model.n_kv_heads", config_.n_kv_heads}};
  const bool is_head = !output && config_.enable_weight_tying;
  if (tok_embeddings) {
    nn::TensorParallelStyle style = nn::vocabulary_parallel(stream);
    if (is_head && !options.loss_parallel) style.parameters.clear();
    plan.add({"tok_embeddings"}, style);
  }
  if (layers.begin() != layers.end()) {
    plan.add({"layers.*.attention_norm", "layers.*.ffn_norm"}, nn::replicated_parameters())
        .add({"layers.*.attention", "layers.*.feed_forward"}, nn::whole_inputs())
        .add({"layers.*.attention.wq", "layers.*.attention.wk", "layers.*.attention.wv",
              "layers.*.feed_forward.w1", "layers.*.feed_forward.w3"},
             nn::column_parallel())
        .add({"layers.*.attention.wo", "layers.*.feed_forward.w2"}, nn::row_parallel(stream));
  }
  if (norm) plan.add({"norm"}, nn::whole_outputs());
  if (output) {
    plan.add({"output"},
             options.loss_parallel ? nn::column_parallel() : nn::replicated_parameters());
  }
  return plan;
}

}  // namespace tessera::llama3
