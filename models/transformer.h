// SPDX-License-Identifier: Apache-2.0
// Transformer: the decoder that an Architecture describes. Its parts are those of nn/, each made
// from the fields that are its own; which of them a layer has follows from the layer's number.
// Layers with equal spans and tables are of one kind, and share metadata.
#pragma once

#include "tessera/models/architecture.h"
#include "tessera/models/decoder.h"
#include "tessera/models/family.h"

#include <optional>
#include <vector>

namespace tessera::models {

/// block(x, metadata, cache = nullptr), x (B, T, dim): adds attention and a feed-forward or experts
/// to x, as Architecture::Residual says.
class TESSERA_API TransformerBlock final : public nn::Layer<TransformerBlock> {
 public:
  TransformerBlock(const Architecture& a, int64_t layer);
  void visit(nn::Visitor& visitor) override;

  nn::Attention attention;
  std::optional<nn::FeedForward> feed_forward;  // one of the three
  std::optional<nn::Mlp> mlp;                   // which is `feed_forward` too
  std::optional<nn::MoE> moe;
  std::optional<nn::Norm> attention_norm, ffn_norm;            // of what they read
  std::optional<nn::Norm> attention_post_norm, ffn_post_norm;  // of what they give
  std::optional<nn::Dropout> dropout;

 private:
  friend class nn::Layer<TransformerBlock>;
  [[nodiscard]] LayerResult forward(const Tensor& x, const nn::AttentionMetadata& metadata,
                                    nn::KvCache* cache = nullptr) const;
  /// What is added to the residual stream.
  [[nodiscard]] Tensor added(const Tensor& y, const std::optional<nn::Norm>& norm) const;
  Architecture::Residual residual_;
};

class TESSERA_API Transformer : public UniformDecoder<TransformerBlock, nn::Norm> {
 public:
  /// Parameters are on the meta device until nn::initialize or nn::load. The fields are valid:
  /// Model and ModelConfig check them.
  explicit Transformer(const Architecture& architecture);
  void visit(nn::Visitor& visitor) override;
  /// Without learned positions, which are in no matmul.
  [[nodiscard]] double flops(std::span<const int64_t> documents) override;
  /// Norms work on the activations between layers, norms of queries and keys on the heads of their
  /// rank; attention and feed-forward gather their inputs and reduce their results.
  [[nodiscard]] nn::TensorParallelPlan tensor_parallel_plan(
      const nn::TensorParallelOptions& options) const override;
  [[nodiscard]] const Architecture& architecture() const { return a_; }

  std::optional<nn::Linear> output;  // none with tied embeddings
  /// Present in the stage that embeds tokens, if positions are learned.
  std::optional<nn::Embedding> pos_embeddings;
  std::optional<nn::Dropout> dropout;

 private:
  // What layers that share metadata have in common.
  struct Kind {
    Architecture::Span span = Architecture::Span::full;
    bool rope = false;
    bool operator==(const Kind&) const = default;
  };
  [[nodiscard]] Kind kind_of(int64_t layer) const { return {a_.span(layer), a_.has_rope(layer)}; }
  /// Chunks and the temperature of queries count the tokens of a row, also where it is packed with
  /// documents, as transformers and torchtitan do.
  [[nodiscard]] Metadata plain_metadata(int64_t length, int64_t start) const override {
    return plain_metadata_of_part(length, start, start + length);
  }
  [[nodiscard]] Metadata plain_metadata_of_part(int64_t length, int64_t start,
                                                int64_t whole) const override;
  [[nodiscard]] nn::AttentionMetadata metadata_of(const Kind& kind, int64_t length, int64_t start,
                                                  int64_t whole) const;
  [[nodiscard]] size_t kind(size_t i) const override { return layer_kinds_[i]; }
  [[nodiscard]] double pairs(int64_t length) override;
  [[nodiscard]] Tensor embed(const Tensor& tokens, const Metadata& metadata) const override;
  [[nodiscard]] Tensor learned_positions(const Tensor& tokens, const Metadata& metadata) const;
  [[nodiscard]] Head head() const override;
  void add_layers(nn::TensorParallelPlan& plan, tessera::Placement stream) const;
  Architecture a_;
  std::vector<Kind> kinds_;          // in the order of the first layer of each
  std::vector<size_t> layer_kinds_;  // of each layer, its place in kinds_
};

/// The model of a family whose Config says its `Architecture architecture() const`.
template <class C> class Model final : public Transformer {
 public:
  using Config = C;
  /// ValueError: fields that are out of range or conflict.
  explicit Model(const Config& config)
      : Transformer(checked(config).architecture()), config_(config) {}
  [[nodiscard]] const Config& config() const { return config_; }

 private:
  Config config_;
};

}  // namespace tessera::models
