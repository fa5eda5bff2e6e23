// SPDX-License-Identifier: Apache-2.0
// Qwen 3 under the names of transformers, which has a type of model for dense ones and one for
// those with experts. Both turn the halves of a head.
#include "tessera/models/hugging_face.h"

#include "tessera/models/qwen3/qwen3.h"

namespace tessera::qwen3 {
namespace {

bool has_experts(const models::ModelConfig& c) { return c.as<Config>().moe.num_experts > 0; }
bool is_dense(const models::ModelConfig& c) { return !has_experts(c); }

// The rows of layers without experts.
std::vector<models::HfTensorNames> tensors() {
  return {{"model.embed_tokens.weight", {"tok_embeddings.weight"}},
          {"model.layers.#.self_attn.q_proj.weight", {"layers.#.attention.wq.weight"}},
          {"model.layers.#.self_attn.q_proj.bias", {"layers.#.attention.wq.bias"}},
          {"model.layers.#.self_attn.k_proj.weight", {"layers.#.attention.wk.weight"}},
          {"model.layers.#.self_attn.k_proj.bias", {"layers.#.attention.wk.bias"}},
          {"model.layers.#.self_attn.v_proj.weight", {"layers.#.attention.wv.weight"}},
          {"model.layers.#.self_attn.v_proj.bias", {"layers.#.attention.wv.bias"}},
          {"model.layers.#.self_attn.o_proj.weight", {"layers.#.attention.wo.weight"}},
          {"model.layers.#.self_attn.o_proj.bias", {"layers.#.attention.wo.bias"}},
          {"model.layers.#.self_attn.q_norm.weight", {"layers.#.attention.q_norm.weight"}},
          {"model.layers.#.self_attn.k_norm.weight", {"layers.#.attention.k_norm.weight"}},
          {"model.layers.#.mlp.gate_proj.weight", {"layers.#.feed_forward.w1.weight"}},
          {"model.layers.#.mlp.down_proj.weight", {"layers.#.feed_forward.w2.weight"}},
          {"model.layers.#.mlp.up_proj.weight", {"layers.#.feed_forward.w3.weight"}},
          {"model.layers.#.input_layernorm.weight", {"layers.#.attention_norm.weight"}},
          {"model.layers.#.post_attention_layernorm.weight", {"layers.#.ffn_norm.weight"}},
          {"model.norm.weight", {"norm.weight"}},
          {"lm_head.weight", {"output.weight"}}};
}

std::vector<models::HfTensorNames> tensors_moe() {
  using models::HfChange, models::HfExperts;
  std::vector<models::HfTensorNames> all = tensors();
  all.insert(all.end(), {{"model.layers.#.mlp.gate.weight", {"layers.#.moe.router.gate.weight"}},
                         {"model.layers.#.mlp.experts.%.gate_proj.weight",
                          {"layers.#.moe.experts.w1"},
                          HfChange::none,
                          HfExperts::apart},
                         {"model.layers.#.mlp.experts.%.down_proj.weight",
                          {"layers.#.moe.experts.w2"},
                          HfChange::none,
                          HfExperts::apart},
                         {"model.layers.#.mlp.experts.%.up_proj.weight",
                          {"layers.#.moe.experts.w3"},
                          HfChange::none,
                          HfExperts::apart}});
  return all;
}

// But for the size of a head and its groups, whose defaults are not the same.
std::vector<models::HfField> fields() {
  return {{"vocab_size", "vocab_size"},
          {"hidden_size", "dim"},
          {"intermediate_size", "ffn_dim"},
          {"num_hidden_layers", "n_layers"},
          {"num_attention_heads", "n_heads"},
          {"max_position_embeddings", "max_seq_len"},
          {"rms_norm_eps", "norm_eps", "1e-6"},
          {"tie_word_embeddings", "enable_weight_tying", "false"},
          {"attention_bias", "qkv_bias", "false"},
          {"attention_bias", "output_bias", "false"},
          {"use_sliding_window", "use_sliding_window", "false"},
          {"sliding_window", "sliding_window", "4096", "0"}};
}

std::vector<models::HfField> joined(std::vector<models::HfField> all,
                                    const std::vector<models::HfField>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<models::HfTied> tied() {
  return {{"lm_head.weight", "model.embed_tokens.weight", "tie_word_embeddings"}};
}

std::vector<models::HfFixed> fixed() {
  return {{"hidden_act", {"\"silu\"", "\"swish\""}}, {"attention_dropout", {"0.0"}, true}};
}

void simplify(models::ModelConfig& config) {
  auto& c = config.as<Config>();
  models::Architecture a = c.architecture();
  a.simplify(false);
  c.spans = a.spans;
}

}  // namespace

const models::HuggingFace& hugging_face() {
  static const models::HuggingFace names{
      .model_type = "qwen3",
      .architecture = "Qwen3ForCausalLM",
      .is_of = is_dense,
      .prefix = "model.",
      .tensors = tensors(),
      .tied = tied(),
      .fields =
          joined(fields(), {{"head_dim", "head_dim", "128"},
                            {"max_window_layers", "max_window_layers", "28"},
                            {"layer_types", "layer_types", "[]", "[]"},
                            {"num_key_value_heads", "n_kv_heads", "32", "num_attention_heads"}}),
      .fixed = fixed(),
      .fixed_ours = {{"num_experts", "0"}},
      .derived = {{"layer_types",
                   [](const models::ModelConfig& c) {
                     return models::layer_types_json(c.as<Config>().architecture());
                   },
                   {"num_hidden_layers"},
                   true}},
      .simplify = simplify,
      .rope = true,
      .gguf = &gguf()};
  return names;
}

const models::HuggingFace& hugging_face_moe() {
  static const models::HuggingFace names = [] {
    models::HuggingFace n{
        .model_type = "qwen3_moe",
        .architecture = "Qwen3MoeForCausalLM",
        .is_of = has_experts,
        .prefix = "model.",
        .tensors = tensors_moe(),
        .tied = tied(),
        .fields = joined(fields(), {{"head_dim", "head_dim"},
                                    {"num_key_value_heads", "n_kv_heads", "4", "null"},
                                    {"num_experts", "num_experts", "", "", {"num_local_experts"}},
                                    {"num_experts_per_tok", "top_k"},
                                    {"moe_intermediate_size", "moe_inter_dim"},
                                    {"norm_topk_prob", "route_norm", "false"},
                                    {"decoder_sparse_step", "decoder_sparse_step", "1"}}),
        .fixed = fixed(),
        .fixed_ours = {{"load_balance_coeff", "0", "expert_bias"}, {"capacity_factor", "0"}},
        .simplify = simplify,
        .rope = true,
        .gguf = &gguf_moe()};
    n.fixed.push_back({"mlp_only_layers", {"[]"}});
    return n;
  }();
  return names;
}

}  // namespace tessera::qwen3
