// SPDX-License-Identifier: Apache-2.0
// Llama under the names of transformers. They turn the halves of a head, we adjacent pairs, as
// Meta's own code does: the rows of wq and wk change places.
#include "tessera/models/hugging_face.h"

#include "tessera/models/llama3/llama3.h"

namespace tessera::llama3 {

const models::HuggingFace& hugging_face() {
  using models::HfChange;
  static const models::HuggingFace names{
      .model_type = "llama",
      .architecture = "LlamaForCausalLM",
      .prefix = "model.",
      .tensors = {{"model.embed_tokens.weight", {"tok_embeddings.weight"}},
                  {"model.layers.#.self_attn.q_proj.weight",
                   {"layers.#.attention.wq.weight"},
                   HfChange::halves},
                  {"model.layers.#.self_attn.q_proj.bias",
                   {"layers.#.attention.wq.bias"},
                   HfChange::halves},
                  {"model.layers.#.self_attn.k_proj.weight",
                   {"layers.#.attention.wk.weight"},
                   HfChange::halves},
                  {"model.layers.#.self_attn.k_proj.bias",
                   {"layers.#.attention.wk.bias"},
                   HfChange::halves},
                  {"model.layers.#.self_attn.v_proj.weight", {"layers.#.attention.wv.weight"}},
                  {"model.layers.#.self_attn.v_proj.bias", {"layers.#.attention.wv.bias"}},
                  {"model.layers.#.self_attn.o_proj.weight", {"layers.#.attention.wo.weight"}},
                  {"model.layers.#.self_attn.o_proj.bias", {"layers.#.attention.wo.bias"}},
                  {"model.layers.#.mlp.gate_proj.weight", {"layers.#.feed_forward.w1.weight"}},
                  {"model.layers.#.mlp.gate_proj.bias", {"layers.#.feed_forward.w1.bias"}},
                  {"model.layers.#.mlp.down_proj.weight", {"layers.#.feed_forward.w2.weight"}},
                  {"model.layers.#.mlp.down_proj.bias", {"layers.#.feed_forward.w2.bias"}},
                  {"model.layers.#.mlp.up_proj.weight", {"layers.#.feed_forward.w3.weight"}},
                  {"model.layers.#.mlp.up_proj.bias", {"layers.#.feed_forward.w3.bias"}},
                  {"model.layers.#.input_layernorm.weight", {"layers.#.attention_norm.weight"}},
                  {"model.layers.#.post_attention_layernorm.weight", {"layers.#.ffn_norm.weight"}},
                  {"model.norm.weight", {"norm.weight"}},
                  {"lm_head.weight", {"output.weight"}}},
      .passed_over = {"model.layers.#.self_attn.rotary_emb.inv_freq"},
      .tied = {{"lm_head.weight", "model.embed_tokens.weight", "tie_word_embeddings"}},
      .fields = {{"vocab_size", "vocab_size"},
                 {"hidden_size", "dim"},
                 {"intermediate_size", "ffn_dim"},
                 {"num_hidden_layers", "n_layers"},
                 {"num_attention_heads", "n_heads"},
                 {"num_key_value_heads", "n_kv_heads", "num_attention_heads"},
                 {"max_position_embeddings", "max_seq_len"},
                 {"rms_norm_eps", "norm_eps", "1e-6"},
                 {"tie_word_embeddings", "enable_weight_tying", "false"},
                 {"head_dim", "head_dim", "0", "0"},
                 {"attention_bias", "qkv_bias", "false"},
                 {"attention_bias", "output_bias", "false"},
                 {"mlp_bias", "ffn_bias", "false"}},
      .fixed = {{"hidden_act", {"\"silu\"", "\"swish\""}}, {"attention_dropout", {"0.0"}, true}},
      .derived = {{"head_dim",
                   [](const models::ModelConfig& c) {
                     return std::to_string(c.as<Config>().head_dim());
                   },
                   {"hidden_size", "num_attention_heads"}}},
      .simplify =
          [](models::ModelConfig& config) {
            auto& c = config.as<Config>();
            if (c.own_head_dim * c.n_heads == c.dim) c.own_head_dim = 0;
          },
      .rope = true,
      .head_dim = [](const models::ModelConfig& c) { return c.as<Config>().head_dim(); },
      .gguf = &gguf()};
  return names;
}

}  // namespace tessera::llama3
