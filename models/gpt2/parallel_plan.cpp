// SPDX-License-Identifier: Apache-2.0
// How tensor parallelism shards gpt2. Norms work on the activations between layers; attention and
// feed-forward gather them, and reduce their results.
#include "tessera/models/gpt2/gpt2.h"

namespace tessera::gpt2 {

nn::TensorParallelPlan Model::tensor_parallel_plan(const nn::TensorParallelOptions& options) const {
  const Placement stream = options.stream();
  nn::TensorParallelPlan plan{.options = options};
  plan.divided = {{"model.n_heads", config_.n_heads}};
  if (tok_embeddings) {  // also the head
    nn::TensorParallelStyle style = nn::vocabulary_parallel(stream);
    if (!options.loss_parallel) style.parameters.clear();
    plan.add({"tok_embeddings"}, style);
  }
  if (pos_embeddings) plan.add({"pos_embeddings"}, nn::replicated_parameters());
  if (layers.begin() != layers.end()) {
    plan.add({"layers.*.attention_norm", "layers.*.ffn_norm"}, nn::replicated_parameters())
        .add({"layers.*.attention", "layers.*.feed_forward"}, nn::whole_inputs())
        .add({"layers.*.attention.wq", "layers.*.attention.wk", "layers.*.attention.wv",
              "layers.*.feed_forward.w1"},
             nn::column_parallel())
        .add({"layers.*.attention.wo", "layers.*.feed_forward.w2"}, nn::row_parallel(stream));
  }
  if (norm) plan.add({"norm"}, nn::whole_outputs());
  return plan;
}

}  // namespace tessera::gpt2
