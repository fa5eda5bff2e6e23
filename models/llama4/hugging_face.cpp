// SPDX-License-Identifier: Apache-2.0
// Llama 4 under the names of transformers. Both turn adjacent pairs, so no rows change places. Meta
// published it within a model that sees images too, of which this is the text; the weights of the
// other parts are passed over with a notice, as no folder is without them. What we write is the
// text model alone.
#include "tessera/models/hugging_face.h"

#include "tessera/models/llama4/llama4.h"
#include "tessera/models/types/rows.h"

namespace tessera::llama4 {
namespace {

std::string moe_layers(const models::ModelConfig& config) {
  const auto& c = config.as<Config>();
  std::string list;
  for (int64_t i = 0; i < c.n_layers; ++i)
    if (c.has_experts(i)) list += concat(list.empty() ? "" : ",", i);
  return concat('[', list, ']');
}

}  // namespace

const models::HuggingFace& hugging_face() {
  using models::HfChange;
  using models::HfExperts;
  static const models::HuggingFace names{
      .model_type = "llama4_text",
      .architecture = "Llama4ForCausalLM",
      .prefix = "model.",
      .within = {.model_type = "llama4",
                 .field = "text_config",
                 .prefix = "language_model.",
                 .others = {"vision_model.", "multi_modal_projector."}},
      .tensors =
          {{"model.embed_tokens.weight", {"tok_embeddings.weight"}},
           {"model.layers.#.self_attn.q_proj.weight", {"layers.#.attention.wq.weight"}},
           {"model.layers.#.self_attn.k_proj.weight", {"layers.#.attention.wk.weight"}},
           {"model.layers.#.self_attn.v_proj.weight", {"layers.#.attention.wv.weight"}},
           {"model.layers.#.self_attn.o_proj.weight", {"layers.#.attention.wo.weight"}},
           {"model.layers.#.feed_forward.gate_proj.weight", {"layers.#.feed_forward.w1.weight"}},
           {"model.layers.#.feed_forward.down_proj.weight", {"layers.#.feed_forward.w2.weight"}},
           {"model.layers.#.feed_forward.up_proj.weight", {"layers.#.feed_forward.w3.weight"}},
           {"model.layers.#.feed_forward.router.weight", {"layers.#.moe.router.gate.weight"}},
           {"model.layers.#.feed_forward.experts.gate_up_proj",
            {"layers.#.moe.experts.w1", "layers.#.moe.experts.w3"},
            HfChange::transposed,
            HfExperts::together},
           {"model.layers.#.feed_forward.experts.down_proj",
            {"layers.#.moe.experts.w2"},
            HfChange::transposed,
            HfExperts::together},
           {"model.layers.#.feed_forward.shared_expert.gate_proj.weight",
            {"layers.#.moe.shared_experts.w1.weight"}},
           {"model.layers.#.feed_forward.shared_expert.down_proj.weight",
            {"layers.#.moe.shared_experts.w2.weight"}},
           {"model.layers.#.feed_forward.shared_expert.up_proj.weight",
            {"layers.#.moe.shared_experts.w3.weight"}},
           {"model.layers.#.input_layernorm.weight", {"layers.#.attention_norm.weight"}},
           {"model.layers.#.post_attention_layernorm.weight", {"layers.#.ffn_norm.weight"}},
           {"model.norm.weight", {"norm.weight"}},
           {"lm_head.weight", {"output.weight"}}},
      .tied = {{"lm_head.weight", "model.embed_tokens.weight", "tie_word_embeddings"}},
      .fields = {{"vocab_size", "vocab_size"},
                 {"hidden_size", "dim"},
                 {"intermediate_size", "moe_inter_dim"},
                 {"intermediate_size_mlp", "ffn_dim"},
                 {"num_hidden_layers", "n_layers"},
                 {"num_attention_heads", "n_heads"},
                 {"num_key_value_heads", "n_kv_heads", "8", "null"},
                 {"head_dim", "head_dim", "128"},
                 {"max_position_embeddings", "max_seq_len"},
                 {"rms_norm_eps", "norm_eps", "1e-5"},
                 {"num_local_experts", "num_experts", "16"},
                 {"num_experts_per_tok", "top_k", "1"},
                 {"interleave_moe_layer_step", "interleave_moe_layer_step", "1"},
                 {"no_rope_layer_interval", "nope_layer_interval", "4"},
                 {"attention_chunk_size", "attention_chunk_size", "8192", "null"},
                 {"use_qk_norm", "use_qk_norm", "true"},
                 {"attn_temperature_tuning", "attn_temperature_tuning", "true"},
                 {"floor_scale", "floor_scale", "8192"},
                 {"attn_scale", "attn_scale", "0.1"},
                 {"tie_word_embeddings", "enable_weight_tying", "false"}},
      .fixed = {{"hidden_act", {"\"silu\""}},
                {"attention_bias", {"false"}},
                {"attention_dropout", {"0.0"}, true},
                {"router_jitter_noise", {"0.0"}, true}},
      .fixed_ours = {{"route_norm", "false"},
                     {"load_balance_coeff", "0", "expert_bias"},
                     {"capacity_factor", "0"}},
      .derived = {{"moe_layers", moe_layers, {"interleave_moe_layer_step"}},
                  {"no_rope_layers",
                   [](const models::ModelConfig& c) {
                     return models::types::no_rope_layers_json(c.as<Config>().architecture());
                   },
                   {"no_rope_layer_interval"},
                   true},
                  {"layer_types",
                   [](const models::ModelConfig& c) {
                     return models::layer_types_json(c.as<Config>().architecture());
                   },
                   {"no_rope_layer_interval"}}},
      .rope = true,
      .rope_theta = 5e5};
  return names;
}

}  // namespace tessera::llama4
