// SPDX-License-Identifier: Apache-2.0
// Shared by all models: metadata of packed sequences, and tables brought to the parameters. A model
// on the meta device has its RoPE tables there too.
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

Metadata LanguageModel::metadata(int64_t length, int64_t start) const {
  if (start < 0 || length < 1 || start + length > max_seq_len()) {
    fail<ValueError>("metadata", "positions ", start, " to ", start + length,
                     " are not within max_seq_len ", max_seq_len());
  }
  Metadata m = plain_metadata(length, start);
  for (nn::AttentionMetadata& kind : m.kinds) {
    for (Tensor* table : kind.tables()) {
      if (!table->defined()) continue;
      const Placement at = placement();
      if (at.device.is_cuda()) *table = to_device(*table, at.device);
      if (at.mesh) *table = distribute(*table, Layout::replicated(at.mesh));
    }
  }
  return m;
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

}  // namespace tessera::models
