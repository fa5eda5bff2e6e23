// SPDX-License-Identifier: Apache-2.0
// Shared by all models: metadata of packed sequences, and inputs moved to the device of the
// parameters. A model on the meta device has its RoPE tables there too.
#include "tessera/models/model.h"

#include "tessera/dist/dtensor.h"
#include "tessera/kernels/views/views.h"

namespace tessera::models {

const nn::AttentionMetadata& Metadata::of(size_t kind) const {
  if (kind >= kinds.size()) {
    fail<IndexError>("metadata", "no kind of layer ", kind, ": there are ", kinds.size(),
                     ", counted from 0");
  }
  return kinds[kind];
}

Metadata Metadata::with_documents(const Tensor& positions, const Tensor& documents,
                                  const Tensor& padding) const {
  Metadata packed = *this;
  for (nn::AttentionMetadata& kind : packed.kinds) {
    kind.position_ids = positions;
    kind.documents = documents;
    kind.padding = padding;
  }
  return packed;
}

nn::TensorParallelPlan LanguageModel::tensor_parallel_plan(const nn::TensorParallelOptions&) const {
  fail<UsageError>("tensor_parallel",
                   "this family of models has no plan for tensor parallelism: leave its degree 1, "
                   "or override tensor_parallel_plan");
}

Tensor LanguageModel::forward(const Tensor& tokens) const {
  Metadata m = metadata(tokens.size(-1));
  if (tokens.device().is_meta()) {
    for (nn::AttentionMetadata& kind : m.kinds) {
      for (Tensor* table : kind.tables()) {
        if (table->defined()) *table = to_device(*table, kMeta);
      }
    }
  }
  return forward(tokens, m);
}

std::vector<std::vector<nn::Module*>> LanguageModel::data_parallel_units() {
  std::vector<std::vector<nn::Module*>> all;
  for (nn::Module* unit : units()) all.push_back({unit});
  return all;
}

Tensor LanguageModel::placed(const Tensor& x) const {
  const Placement at = placement();
  const Tensor there = at.device.is_cuda() ? to_device(x, at.device) : x;
  return at.mesh ? distribute(there, Layout::replicated(at.mesh)) : there;
}

}  // namespace tessera::models
