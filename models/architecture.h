// SPDX-License-Identifier: Apache-2.0
// Architecture: a decoder as data. It says of each part of Transformer (transformer.h) which one a
// model has and of which size; a type of model is an Architecture with some of these fields fixed.
// Names of fields are torchtitan's where it has them, else transformers'.
#pragma once

#include "tessera/kernels/rope/rope.h"
#include "tessera/models/config/moe_fields.h"
#include "tessera/nn/attention.h"
#include "tessera/nn/moe/moe.h"
#include "tessera/nn/norm.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::models {

struct TESSERA_API Architecture {
  struct Attention {
    int64_t n_heads = 32;
    int64_t n_kv_heads = 0;  ///< 0: n_heads
    int64_t head_dim = 0;    ///< 0: dim / n_heads
    bool qkv_bias = false, output_bias = false;
    enum class QkNorm : uint8_t {
      none,
      heads,  ///< RMS norms of each head's queries and keys
      whole,  ///< the same over all heads of a token at once
      l2      ///< without weights, after RoPE, in layers that have RoPE
    };
    QkNorm qk_norm = QkNorm::none;
    double multiplier = 0;             ///< of scores; 0: as query_pre_attn_scalar says
    double query_pre_attn_scalar = 0;  ///< scores are divided by its root; 0: the head's size
    double soft_cap = 0;               ///< of scores; 0: none
    bool fused_qkv = true;             ///< queries, keys and values in one matmul
  };

  struct Positions {
    enum class Kind : uint8_t {
      pairs,   ///< RoPE turns adjacent values of a head
      halves,  ///< RoPE turns value i with value i + half
      learned  ///< an embedding of max_seq_len positions
    };
    Kind kind = Kind::halves;
    double theta = 10000;
    RopeScaling scaling = {};
    double local_theta = 0;  ///< of layers with a window, which have no scaling; 0: as the others
    double partial_rotary_factor = 1;    ///< the part of a head that turns
    int64_t nope_layer_interval = 0;     ///< the last of every so many layers has no RoPE; 0: none
    bool rope_in_windows_alone = false;  ///< layers without a window have no RoPE
    /// Queries are multiplied by nn::query_temperature of these.
    struct Temperature {
      double scale = 0;            ///< 0: they are not
      int64_t floor_scale = 8192;  ///< 0: scaling.original_max_position
      bool with_rope = false;      ///< in layers with RoPE, else in layers without
      int64_t first_position = 0;  ///< -1: positions are counted from one less
    };
    Temperature temperature = {};
  };

  /// What each layer sees.
  struct Spans {
    /// full_attention, sliding_attention or chunked_attention of each layer; empty: by the pattern.
    std::vector<std::string> layer_types = {};
    int64_t pattern = 0;             ///< all but the last of every so many layers have the window
    int64_t max_window_layers = 0;   ///< only layers from this one on have it
    bool before_max = false;         ///< only layers before that one have it
    bool without_rope = false;       ///< layers without RoPE have it, and no others
    bool use_sliding_window = true;  ///< whether any has it
    int64_t sliding_window = 0;      ///< tokens that a layer with a window sees; 0: none has one
    int64_t chunk = 0;               ///< tokens of a chunk of chunked_attention
  };

  struct FeedForward {
    int64_t dim = 11008;
    bool gated = true, bias = false;
    nn::Nonlinearity nonlinearity = nn::Nonlinearity::silu;
  };

  /// Layers with experts.
  struct Experts {
    config::MoeConfig moe = {};
    int64_t step = 1;  ///< the last of every so many layers has experts, if any
    /// Numbers of layers that have none.
    std::vector<double> mlp_only_layers = {};
    int64_t shared_experts = 0;  ///< that every token takes, as one network
    int64_t shared_hidden = 0;   ///< its hidden size; 0: as that of so many experts
    bool shared_gate = false;    ///< a sigmoid multiplies what the shared expert gives
    nn::Router::Score score = nn::Router::Score::softmax;
    bool score_before_experts = false;  ///< shares multiply the experts' inputs
  };

  struct Norm {
    nn::Norm::Kind kind = nn::Norm::Kind::rms;
    double eps = 1e-5, weight_offset = 0;
    bool bias = true;  ///< of LayerNorm
  };

  struct Residual {
    bool before = true;  ///< attention and feed-forward read norms of the residual stream
    bool after = false;  ///< norms of what they give, before it is added
    /// Feed-forward reads the stream that attention reads.
    bool parallel = false;
    bool shared_norm = false;  ///< where it does, it has no norm of its own
    double multiplier = 1;     ///< factor of the outputs of attention and feed-forward
    double dropout = 0;        ///< dropout of these outputs
  };

  struct Embeddings {
    bool tied = false;               ///< the head uses the weight of the embedding
    double multiplier = 1;           ///< of the embedding of tokens
    bool times_root_of_dim = false;  ///< the multiplier is sqrt(dim), rounded to the dtype
    double logit_scale = 1;          ///< logits are multiplied by it
    double logits_scaling = 1;       ///< and divided by it
    double soft_cap = 0;             ///< of logits; 0: none
    double dropout = 0;
  };

  /// Initial values of matrices; of norms and biases they are 1 and 0.
  struct Initial {
    double std = 0.02;
    bool truncated = false;  ///< at three standard deviations
    enum class Depth : uint8_t {
      none,
      own,    ///< what adds to the residual stream in layer i is divided by sqrt(2 (i + 1))
      layers  ///< by sqrt(2 n_layers)
    };
    Depth depth = Depth::none;
    /// The same of w2 and w3 of a feed-forward, of experts' w3 and of routers; of experts' w2 it is
    /// so anyway.
    bool feed_forward_by_depth = false;
    bool unit_embeddings = false;  ///< their std is 1, and that of the head, tied too, dim^-1/2
  };

  std::string_view family = "transformer";  ///< for errors
  int64_t dim = 4096, n_layers = 32, vocab_size = 32000, max_seq_len = 2048;
  DType dtype = DType::f32;  ///< of parameters
  Attention attention = {};
  Positions positions = {};
  Spans spans = {};
  FeedForward feed_forward = {};
  Experts experts = {};
  Norm norm = {};
  Residual residual = {};
  Embeddings embeddings = {};
  Initial initial = {};

  // What follows from the fields.
  [[nodiscard]] int64_t kv_heads() const {
    return attention.n_kv_heads > 0 ? attention.n_kv_heads : attention.n_heads;
  }
  [[nodiscard]] int64_t head_dim() const {
    return attention.head_dim > 0 ? attention.head_dim : dim / attention.n_heads;
  }
  /// The values of a head that RoPE turns.
  [[nodiscard]] int64_t rotary_dim() const;
  /// By what scores are multiplied; 0: 1 / sqrt(head_dim).
  [[nodiscard]] double score_scale() const;
  [[nodiscard]] bool has_experts(int64_t layer) const;
  enum class Span : uint8_t { full, window, chunk };
  [[nodiscard]] Span span(int64_t layer) const;
  [[nodiscard]] bool has_rope(int64_t layer) const;
  /// Whether it is the last of nope_layer_interval layers.
  [[nodiscard]] bool is_nope(int64_t layer) const {
    return positions.nope_layer_interval > 0 && (layer + 1) % positions.nope_layer_interval == 0;
  }
  /// Says the same in fewest fields: a head_dim of dim / n_heads is 0, layer_types that a pattern
  /// gives are empty. `any_pattern`: the pattern is a field, and may become another.
  void simplify(bool any_pattern);
  /// layer_types, written out.
  [[nodiscard]] std::vector<std::string> layer_types() const;
};

/// The fields of windows: layer_types, sliding_window, use_sliding_window, max_window_layers.
TESSERA_API void window_fields(config::Fields& f, Architecture::Spans& spans);
/// Conflicts between these fields, as messages that begin with `[--model.<field>]`.
[[nodiscard]] TESSERA_API std::vector<std::string> window_conflicts(
    const Architecture::Spans& spans, int64_t n_layers);
/// Architecture::layer_types() as JSON.
[[nodiscard]] TESSERA_API std::string layer_types_json(const Architecture& a);

}  // namespace tessera::models
