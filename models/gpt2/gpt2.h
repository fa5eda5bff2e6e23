// SPDX-License-Identifier: Apache-2.0
// GPT-2 (Radford et al., OpenAI, 2019): pre-norm transformer with LayerNorm, learned positions,
// biases, GELU by its tanh approximation, and tied embeddings. Names of members are those of our
// other decoders. Initialisation is that of transformers: normal with standard deviation 0.02, also
// for positions (OpenAI's first code used 0.01); 0.02 / sqrt(2 n_layers) for the output projections
// of attention and feed-forward; biases zero. Dropout is 0 by default; OpenAI trained with 0.1.
#pragma once

#include "tessera/models/decoder.h"
#include "tessera/models/family.h"
#include "tessera/models/gpt2/config.h"
#include "tessera/nn/containers.h"

#include <optional>
#include <vector>

namespace tessera::models {
struct Gguf;
}

namespace tessera::gpt2 {

/// block(x, metadata, cache = nullptr): x + attention(norm(x)), then x + feed_forward(norm(x)).
class TESSERA_API Block final : public nn::Layer<Block> {
 public:
  explicit Block(const Config& config);
  void visit(nn::Visitor& visitor) override;

  nn::Attention attention;
  nn::Mlp feed_forward;
  nn::LayerNorm attention_norm, ffn_norm;
  nn::Dropout dropout;

 private:
  friend class nn::Layer<Block>;
  [[nodiscard]] Tensor forward(const Tensor& x, const nn::AttentionMetadata& metadata,
                               nn::KvCache* cache = nullptr) const;
};

class TESSERA_API Model final : public models::UniformDecoder<Block, nn::LayerNorm> {
 public:
  using Config = gpt2::Config;
  /// Parameters are on the meta device until nn::initialize or nn::load. ValueError: fields that
  /// are out of range or conflict.
  explicit Model(const Config& config);
  void visit(nn::Visitor& visitor) override;
  [[nodiscard]] const Config& config() const { return config_; }
  /// Without the position embeddings, which are in no matmul.
  [[nodiscard]] double flops(std::span<const int64_t> documents) override;
  [[nodiscard]] nn::TensorParallelPlan tensor_parallel_plan(
      const nn::TensorParallelOptions& options) const override;

  /// Present in the stage that embeds tokens; tok_embeddings is also the head.
  std::optional<nn::Embedding> pos_embeddings;
  nn::Dropout dropout;

 private:
  /// Positions in packed documents also index pos_embeddings.
  [[nodiscard]] models::Metadata plain_metadata(int64_t length, int64_t start) const override;
  [[nodiscard]] Tensor embed(const Tensor& tokens, const models::Metadata& metadata) const override;
  [[nodiscard]] Head head() const override;
  Config config_;
};

/// Its names in transformers, and in llama.cpp.
const models::HuggingFace& hugging_face();
const models::Gguf& gguf();

TESSERA_API models::Family family();

}  // namespace tessera::gpt2
