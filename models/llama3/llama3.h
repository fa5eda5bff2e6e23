// SPDX-License-Identifier: Apache-2.0
// Llama 3 (Meta, 2024): pre-norm transformer, RoPE with Llama 3.1's scaling, grouped-query
// attention, SwiGLU; tied embeddings in 1B and 3B. Names of members and the initialisation are
// torchtitan's; initial weights of linears are truncated at three standard deviations.
#pragma once

#include "tessera/models/decoder.h"
#include "tessera/models/family.h"
#include "tessera/models/llama3/config.h"
#include "tessera/nn/containers.h"

#include <optional>
#include <vector>

namespace tessera::llama3 {

/// block(x, metadata, cache = nullptr): x + attention(norm(x)), then x + feed_forward(norm(x)).
class TESSERA_API Block final : public nn::Layer<Block> {
 public:
  Block(const Config& config, int64_t layer);
  void visit(nn::Visitor& visitor) override;

  nn::Attention attention;
  nn::FeedForward feed_forward;
  nn::RmsNorm attention_norm, ffn_norm;

 private:
  friend class nn::Layer<Block>;
  [[nodiscard]] Tensor forward(const Tensor& x, const nn::AttentionMetadata& metadata,
                               nn::KvCache* cache = nullptr) const;
};

class TESSERA_API Model final : public models::UniformDecoder<Block, nn::RmsNorm> {
 public:
  using Config = llama3::Config;
  /// Parameters are on the meta device until nn::initialize or nn::load. ValueError: fields that
  /// are out of range or conflict.
  explicit Model(const Config& config);
  void visit(nn::Visitor& visitor) override;
  [[nodiscard]] const Config& config() const { return config_; }
  [[nodiscard]] models::Metadata metadata(int64_t length, int64_t start = 0) const override;
  [[nodiscard]] nn::TensorParallelPlan tensor_parallel_plan(
      const nn::TensorParallelOptions& options) const override;

  std::optional<nn::Linear> output;  // none with tied embeddings

 private:
  [[nodiscard]] Tensor embed(const Tensor& tokens, const models::Metadata&) const override;
  [[nodiscard]] Head head() const override;
  Config config_;
};

/// Its names in transformers.
const models::HuggingFace& hugging_face();

TESSERA_API models::Family family();

}  // namespace tessera::llama3
