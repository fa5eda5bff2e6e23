// SPDX-License-Identifier: Apache-2.0
// RotaryDecoder: a decoder with RoPE, RMS norms, SwiGLU or experts, and a linear head or tied
// embeddings, as Llama and Qwen. A family makes the members, with its sizes and its initialisation.
#pragma once

#include "tessera/models/config/moe_fields.h"
#include "tessera/models/decoder.h"
#include "tessera/nn/attention.h"

#include <optional>

namespace tessera::models {

/// block(x, metadata, cache = nullptr): x + attention(norm(x)), then x + f(norm(x)), where f is a
/// feed-forward or a mixture of experts.
class TESSERA_API RotaryBlock final : public nn::Layer<RotaryBlock> {
 public:
  RotaryBlock(const nn::Attention::Config& attention, const nn::FeedForward::Config& feed_forward,
              double norm_eps);
  RotaryBlock(const nn::Attention::Config& attention, const nn::MoE::Config& experts,
              double norm_eps);
  void visit(nn::Visitor& visitor) override;

  nn::Attention attention;
  std::optional<nn::FeedForward> feed_forward;  // one of the two
  std::optional<nn::MoE> moe;
  nn::RmsNorm attention_norm, ffn_norm;

 private:
  friend class nn::Layer<RotaryBlock>;
  [[nodiscard]] LayerResult forward(const Tensor& x, const nn::AttentionMetadata& metadata,
                                    nn::KvCache* cache = nullptr) const;
};

/// What the fields say of a router; its score and its initial values are the family's.
[[nodiscard]] TESSERA_API nn::Router::Config router_config(const config::MoeConfig& moe,
                                                           int64_t dim, DType dtype);

class TESSERA_API RotaryDecoder : public UniformDecoder<RotaryBlock, nn::RmsNorm> {
 public:
  void visit(nn::Visitor& visitor) override;
  /// Norms work on the activations between layers, those of queries and keys on the heads of their
  /// rank; attention and feed-forward gather their inputs and reduce their results.
  [[nodiscard]] nn::TensorParallelPlan tensor_parallel_plan(
      const nn::TensorParallelOptions& options) const override;

  std::optional<nn::Linear> output;  // none with tied embeddings

 protected:
  [[nodiscard]] Metadata plain_metadata(int64_t length, int64_t start) const override;
  /// Of a family's checked configuration, with the fields of config::rotary_fields and, where it
  /// has experts, config::moe_fields.
  template <class Config>
  RotaryDecoder(std::string_view family, const Config& c)
      : UniformDecoder(sizes_of(family, c)),
        heads_{.query = c.n_heads,
               .key = c.n_kv_heads,
               .dim = head_dim_of(c),
               .rope_theta = c.rope_theta,
               .rope_scaling = c.rope_scaling,
               .dtype = c.dtype},
        tied_(c.enable_weight_tying) {}

 private:
  struct Heads {
    int64_t query = 0, key = 0, dim = 0;
    double rope_theta = 0;
    RopeScaling rope_scaling = {};
    DType dtype = DType::f32;  ///< of parameters
  };
  template <class Config> static int64_t head_dim_of(const Config& c) {
    if constexpr (requires { c.head_dim(); }) return c.head_dim();
    else return c.head_dim;
  }
  template <class Config> static Sizes sizes_of(std::string_view family, const Config& c) {
    Sizes sizes{.family = family,
                .vocab_size = c.vocab_size,
                .max_seq_len = c.max_seq_len,
                .n_layers = c.n_layers,
                .attention_dim = c.n_heads * head_dim_of(c)};
    if constexpr (requires { c.moe; }) {
      sizes.router = router_config(c.moe, c.dim, c.dtype);
      sizes.load_balance_coeff = c.moe.load_balance_coeff;
    }
    return sizes;
  }
  [[nodiscard]] Tensor embed(const Tensor& tokens, const Metadata&) const override;
  [[nodiscard]] Head head() const override;
  Heads heads_;
  bool tied_;
};

}  // namespace tessera::models
