// SPDX-License-Identifier: Apache-2.0
// Shared by all models: metadata of packed sequences, and tables brought to the parameters. A model
// on the meta device has its RoPE tables there too.
#include "tessera/models/model.h"

#include "tessera/dist/dtensor.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/parameters.h"

#include <algorithm>

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

Metadata LanguageModel::metadata(int64_t length, int64_t start, int64_t whole) const {
  if (start < 0 || length < 1 || start + length > max_seq_len()) {
    fail<ValueError>("metadata", "positions ", start, " to ", start + length,
                     " are not within max_seq_len ", max_seq_len());
  }
  Metadata m = plain_metadata_of_part(length, start, std::max(whole, start + length));
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

namespace {

// Finds the members that may be absent, directly below the root.
class PartsVisitor final : public nn::Visitor {
 public:
  bool drops(const std::string& path) override {
    parts.push_back(path);
    return false;
  }
  bool on_module(const std::string&, nn::Module&) override { return false; }
  std::vector<std::string> parts;
};

class KeepVisitor final : public nn::Visitor {
 public:
  explicit KeepVisitor(std::span<const std::string> kept) : kept_(kept) {}
  bool drops(const std::string& path) override {
    return std::ranges::find(kept_, path) == kept_.end();
  }
  bool on_module(const std::string&, nn::Module&) override { return false; }

 private:
  std::span<const std::string> kept_;
};

[[noreturn]] void fail_no_stages(std::string_view what) {
  fail<UsageError>("pipeline",
                   "this family of models cannot be split into stages: leave the degree of "
                   "pipeline parallelism 1, or override ",
                   what);
}

}  // namespace

std::vector<std::string> LanguageModel::parts() {
  PartsVisitor visitor;
  visitor.walk(*this);
  return visitor.parts;
}

void LanguageModel::keep(std::span<const std::string> names) {
  const std::vector<std::string> all = parts();
  for (const std::string& name : names) {
    if (std::ranges::find(all, name) != all.end()) continue;
    std::string list;
    for (const std::string& part : all) list += concat(list.empty() ? "" : ", ", part);
    fail<ValueError>("keep", '\'', name, "' is no part of the model: its parts are ", list);
  }
  for (const nn::NamedModule& m : nn::named_modules(*this)) {
    if (m.module->is_wrapped())
      fail<UsageError>("keep", m.name.empty() ? "the model" : m.name,
                       " is wrapped already: keep parts before passes over modules");
  }
  KeepVisitor visitor(names);
  visitor.walk(*this);
}

StageOutput LanguageModel::stage(const TensorList&, const Metadata&) const {
  fail_no_stages("stage");
}

Loss LanguageModel::head_loss(const TensorList&, const Tensor&, const CrossEntropyOptions&) const {
  fail_no_stages("head_loss");
}

TensorList LanguageModel::next_stage(const TensorList&, const Tensor&, Cache&) const {
  fail_no_stages("next_stage");
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
