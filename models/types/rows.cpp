// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/types/rows.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <string>

namespace tessera::models::types {
namespace {

// Tables hold views of names; these live as long as the process.
std::string_view kept(std::string name) {
  static std::mutex mutex;
  static std::set<std::string> names;
  const std::lock_guard lock(mutex);
  return *names.insert(std::move(name)).first;
}

std::string_view whole(std::string_view name, std::string_view layers, std::string_view tensor) {
  return kept(concat(name.starts_with('.') ? layers : "", name, tensor));
}

}  // namespace

std::vector<HfTensorNames> rows(const std::vector<Names>& modules, std::string_view layers) {
  std::vector<HfTensorNames> all;
  for (const Names& m : modules) {
    for (const std::string_view tensor : {".weight", ".bias"}) {
      std::vector<std::string_view> ours;
      for (const std::string_view name : m.ours) ours.push_back(whole(name, "layers.#", tensor));
      all.push_back({.theirs = whole(m.theirs, layers, tensor), .ours = ours, .order = m.order});
    }
  }
  return all;
}

std::vector<Names> embeddings() {
  return {{"model.embed_tokens", {"tok_embeddings"}},
          {"model.norm", {"norm"}},
          {"lm_head", {"output"}}};
}

std::vector<Names> attention() {
  return {
      {".self_attn.q_proj", {".attention.wq"}},     {".self_attn.k_proj", {".attention.wk"}},
      {".self_attn.v_proj", {".attention.wv"}},     {".self_attn.o_proj", {".attention.wo"}},
      {".self_attn.q_norm", {".attention.q_norm"}}, {".self_attn.k_norm", {".attention.k_norm"}}};
}

std::vector<Names> gated_mlp() {
  return {{".mlp.gate_proj", {".feed_forward.w1"}},
          {".mlp.up_proj", {".feed_forward.w3"}},
          {".mlp.down_proj", {".feed_forward.w2"}}};
}

std::vector<Names> norms_before() {
  return {{".input_layernorm", {".attention_norm"}}, {".post_attention_layernorm", {".ffn_norm"}}};
}

std::vector<Names> llama_modules() {
  return joined(joined(embeddings(), attention()), joined(gated_mlp(), norms_before()));
}

std::vector<Names> gemma2_modules() {
  return joined(joined(joined(embeddings(), attention()), gated_mlp()),
                {{".input_layernorm", {".attention_norm"}},
                 {".post_attention_layernorm", {".attention_post_norm"}},
                 {".pre_feedforward_layernorm", {".ffn_norm"}},
                 {".post_feedforward_layernorm", {".ffn_post_norm"}}});
}

std::vector<Names> olmo2_modules() {
  return joined(joined(joined(embeddings(), attention()), gated_mlp()),
                {{".post_attention_layernorm", {".attention_post_norm"}},
                 {".post_feedforward_layernorm", {".ffn_post_norm"}}});
}

std::vector<HfTensorNames> experts_apart() {
  std::vector<HfTensorNames> all = rows({{".mlp.gate", {".moe.router.gate"}}});
  for (const auto& [theirs, ours] :
       {std::pair("gate_proj", "w1"), std::pair("down_proj", "w2"), std::pair("up_proj", "w3")}) {
    all.push_back({.theirs = kept(concat("model.layers.#.mlp.experts.%.", theirs, ".weight")),
                   .ours = {kept(concat("layers.#.moe.experts.", ours))},
                   .experts = HfExperts::apart});
  }
  return all;
}

std::vector<HfField> llama_fields(std::string_view tied) {
  return {{"vocab_size", "vocab_size"},
          {"hidden_size", "dim"},
          {"intermediate_size", "ffn_dim"},
          {"num_hidden_layers", "n_layers"},
          {"num_attention_heads", "n_heads"},
          {"num_key_value_heads", "n_kv_heads", "num_attention_heads"},
          {"max_position_embeddings", "max_seq_len"},
          {"rms_norm_eps", "norm_eps", "1e-6"},
          {"tie_word_embeddings", "enable_weight_tying", tied}};
}

std::vector<HfField> without(std::vector<HfField> fields, std::string_view ours) {
  std::erase_if(fields, [&](const HfField& f) { return f.ours == ours; });
  return fields;
}

std::vector<HfField> with_defaults(
    std::vector<HfField> fields,
    const std::vector<std::pair<std::string_view, std::string_view>>& values) {
  for (const auto& [ours, value] : values) {
    HfField& f = *std::ranges::find(fields, ours, &HfField::ours);
    if (f.null.empty()) f.null = f.absent;
    f.absent = value;
  }
  return fields;
}

std::vector<HfField> layer_norm_fields(std::string_view eps, std::string_view tied) {
  return joined(without(llama_fields(tied), "norm_eps"), {{eps, "norm_eps", "1e-5"}});
}

std::vector<HfField> experts_fields(std::string_view experts, std::string_view top_k,
                                    std::string_view name) {
  return joined(without(llama_fields(), "ffn_dim"), {{"intermediate_size", "moe_inter_dim"},
                                                     {name, "num_experts", experts},
                                                     {"num_experts_per_tok", "top_k", top_k}});
}

std::vector<HfField> multipliers() {
  return {{"embedding_multiplier", "embedding_multiplier", "1.0"},
          {"logits_scaling", "logits_scaling", "1.0"},
          {"residual_multiplier", "residual_multiplier", "1.0"},
          {"attention_multiplier", "attention_multiplier", "1.0"}};
}

std::vector<HfFixedOurs> plain_routing() {
  return {{"load_balance_coeff", "0", "expert_bias"}, {"capacity_factor", "0"}};
}

std::string no_rope_layers_json(const Architecture& a) {
  std::string list;
  for (int64_t i = 0; i < a.n_layers; ++i) list += concat(i == 0 ? "" : ",", a.has_rope(i) ? 1 : 0);
  return concat('[', list, ']');
}

HfDerived all_no_rope_layers() {
  return {"no_rope_layers",
          [](const ModelConfig& c) { return no_rope_layers_json(c.as<TypeConfig>()); },
          {"no_rope_layer_interval"},
          true};
}

HfWithin text_of(std::string_view whole) {
  return {.model_type = whole,
          .field = "text_config",
          .prefix = "language_model.",
          .others = {"vision_tower.", "multi_modal_projector."}};
}

HfField head_dim() { return {"head_dim", "head_dim", "0", "0"}; }

HfDerived whole_head_dim() {
  return {"head_dim",
          [](const ModelConfig& c) { return std::to_string(c.as<TypeConfig>().head_dim()); },
          {"hidden_size", "num_attention_heads"}};
}

void simplify(ModelConfig& config) { config.as<TypeConfig>().simplify(); }

HfField sliding_window(std::string_view absent) {
  return {"sliding_window", "sliding_window", absent, "0"};
}

std::vector<HfField> attention_bias(std::string_view absent) {
  return {{"attention_bias", "qkv_bias", absent}, {"attention_bias", "output_bias", absent}};
}

HfField layer_types() { return {"layer_types", "layer_types", "[]", "[]"}; }

HfDerived all_layer_types() {
  return {"layer_types",
          [](const ModelConfig& c) { return layer_types_json(c.as<TypeConfig>()); },
          {"num_hidden_layers"},
          true};
}

std::vector<HfFixed> silu() {
  return {{"hidden_act", {"\"silu\"", "\"swish\""}}, {"attention_dropout", {"0.0"}, true}};
}

std::vector<HfFixed> gelu_tanh(std::string_view field) {
  return {{field, {"\"gelu_pytorch_tanh\"", "\"gelu_new\"", "\"gelu_fast\""}},
          {"attention_dropout", {"0.0"}, true}};
}

std::vector<HfTied> tied_head() {
  return {{"lm_head.weight", "model.embed_tokens.weight", "tie_word_embeddings"}};
}

Gguf gguf(const GgufArchitecture& parts) {
  return gguf_of(parts, [](const ModelConfig& c) -> Architecture { return c.as<TypeConfig>(); });
}

std::vector<GgufOwn> gguf_multipliers() {
  return {{"embedding_scale", [](const Architecture& a) { return a.embeddings.multiplier; }},
          {"residual_scale", [](const Architecture& a) { return a.residual.multiplier; }},
          {"logit_scale", [](const Architecture& a) { return a.embeddings.logits_scaling; }},
          {"attention.scale", [](const Architecture& a) { return a.attention.multiplier; }}};
}

int64_t head_dim_of(const ModelConfig& config) { return config.as<TypeConfig>().head_dim(); }

}  // namespace tessera::models::types
