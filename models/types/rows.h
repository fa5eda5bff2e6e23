// SPDX-License-Identifier: Apache-2.0
// Rows of tables that many types of transformers share: names of modules, whose weight and bias
// have the same names on both sides, and fields of config.json.
#pragma once

#include "tessera/models/gguf.h"
#include "tessera/models/type.h"

#include <string_view>
#include <vector>

namespace tessera::models::types {

/// One of their modules, and ours that its tensors are joined of. A name that begins with a point
/// is of a layer: `.mlp.up_proj` is `model.layers.#.mlp.up_proj`, and `.attention` of ours
/// `layers.#.attention`.
struct Names {
  std::string_view theirs;
  std::vector<std::string_view> ours;
  HfJoin order = HfJoin::follow;
};

/// The rows of weights and biases. `layers`: their name of a layer, before the point.
TESSERA_API std::vector<HfTensorNames> rows(const std::vector<Names>& modules,
                                            std::string_view layers = "model.layers.#");

template <class T> std::vector<T> joined(std::vector<T> all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Modules of Llama, which most types have.
TESSERA_API std::vector<Names> embeddings();     ///< embed_tokens, norm, lm_head
TESSERA_API std::vector<Names> attention();      ///< q_proj, k_proj, v_proj, o_proj, q_norm, k_norm
TESSERA_API std::vector<Names> gated_mlp();      ///< gate_proj, up_proj, down_proj
TESSERA_API std::vector<Names> norms_before();   ///< input_layernorm, post_attention_layernorm
TESSERA_API std::vector<Names> llama_modules();  ///< all of these
TESSERA_API std::vector<Names> gemma2_modules();  ///< with norms on both sides
TESSERA_API std::vector<Names> olmo2_modules();   ///< with norms of results
/// Experts that each have their own tensors, under mlp.experts.#.
TESSERA_API std::vector<HfTensorNames> experts_apart();

/// vocab_size, sizes of layers and heads, max_position_embeddings, rms_norm_eps and the tied
/// embeddings; `tied`: whether they are where config.json does not say it.
TESSERA_API std::vector<HfField> llama_fields(std::string_view tied = "false");
/// The same of models with LayerNorm, and the name of its eps.
TESSERA_API std::vector<HfField> layer_norm_fields(std::string_view eps, std::string_view tied);
/// The same of models with experts in all layers, and how many there are by default.
TESSERA_API std::vector<HfField> experts_fields(std::string_view experts, std::string_view top_k,
                                                std::string_view name = "num_local_experts");
TESSERA_API std::vector<HfField> without(std::vector<HfField> fields, std::string_view ours);
/// With the values, by our names, that a type of transformers takes where config.json lacks them.
TESSERA_API std::vector<HfField> with_defaults(
    std::vector<HfField> fields,
    const std::vector<std::pair<std::string_view, std::string_view>>& values);
/// head_dim, which may be absent: hidden_size / num_attention_heads.
TESSERA_API HfField head_dim();
/// head_dim as a number, which exports write.
TESSERA_API HfDerived whole_head_dim();
/// HuggingFace::simplify of a TypeConfig.
TESSERA_API void simplify(ModelConfig& config);
/// sliding_window with its default; null is none.
TESSERA_API HfField sliding_window(std::string_view absent);
/// attention_bias of queries, keys and values, and of the output.
TESSERA_API std::vector<HfField> attention_bias(std::string_view absent = "false");
/// Granite's factors.
TESSERA_API std::vector<HfField> multipliers();
/// Of routers: no bias and no capacity.
TESSERA_API std::vector<HfFixedOurs> plain_routing();
/// layer_types; and the whole list, which exports write.
TESSERA_API HfField layer_types();
TESSERA_API HfDerived all_layer_types();
/// no_rope_layers: 1 for layers with RoPE; and the same of any Architecture as JSON.
TESSERA_API HfDerived all_no_rope_layers();
TESSERA_API std::string no_rope_layers_json(const Architecture& a);
/// Within a whole that also sees images, as Gemma 3 and Mistral 3 were published.
TESSERA_API HfWithin text_of(std::string_view whole);
/// The activation of a type that has one, and what training alone reads.
TESSERA_API std::vector<HfFixed> silu();
TESSERA_API std::vector<HfFixed> gelu_tanh(std::string_view field);
/// lm_head beside tied embeddings.
TESSERA_API std::vector<HfTied> tied_head();

// Tables for llama.cpp.
using Has = GgufArchitecture::Has;
using Windows = GgufArchitecture::Windows;
TESSERA_API Gguf gguf(const GgufArchitecture& parts);
/// Gemma's attention scores are divided by the root of head_dim, in the model with so many layers
/// by that of dim / n_heads.
template <int64_t kLayers> GgufLimit gemma_scores() {
  return {"attention scores over the root of head_dim, in its largest model of dim / n_heads",
          [](const Architecture& a) {
            const int64_t size = a.n_layers == kLayers ? a.dim / a.attention.n_heads : a.head_dim();
            const double scalar = a.attention.query_pre_attn_scalar;
            return (scalar > 0 ? scalar : static_cast<double>(a.head_dim())) ==
                   static_cast<double>(size);
          }};
}
TESSERA_API std::vector<GgufOwn> gguf_multipliers();

/// The head of a model with pairs that take turns (HuggingFace::head_dim).
TESSERA_API int64_t head_dim_of(const ModelConfig& config);

}  // namespace tessera::models::types
