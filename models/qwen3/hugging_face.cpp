// SPDX-License-Identifier: Apache-2.0
// Dense Qwen 3 under the names of transformers. Both turn the halves of a head.
#include "tessera/models/hugging_face.h"

#include "tessera/models/qwen3/qwen3.h"

namespace tessera::qwen3 {

const models::HuggingFace& hugging_face() {
  static const models::HuggingFace names{
      .model_type = "qwen3",
      .architecture = "Qwen3ForCausalLM",
      .tensors = {{"model.embed_tokens.weight", {"tok_embeddings.weight"}},
                  {"model.layers.#.self_attn.q_proj.weight", {"layers.#.attention.wq.weight"}},
                  {"model.layers.#.self_attn.k_proj.weight", {"layers.#.attention.wk.weight"}},
                  {"model.layers.#.self_attn.v_proj.weight", {"layers.#.attention.wv.weight"}},
                  {"model.layers.#.self_attn.o_proj.weight", {"layers.#.attention.wo.weight"}},
                  {"model.layers.#.self_attn.q_norm.weight", {"layers.#.attention.q_norm.weight"}},
                  {"model.layers.#.self_attn.k_norm.weight", {"layers.#.attention.k_norm.weight"}},
                  {"model.layers.#.mlp.gate_proj.weight", {"layers.#.feed_forward.w1.weight"}},
                  {"model.layers.#.mlp.down_proj.weight", {"layers.#.feed_forward.w2.weight"}},
                  {"model.layers.#.mlp.up_proj.weight", {"layers.#.feed_forward.w3.weight"}},
                  {"model.layers.#.input_layernorm.weight", {"layers.#.attention_norm.weight"}},
                  {"model.layers.#.post_attention_layernorm.weight", {"layers.#.ffn_norm.weight"}},
                  {"model.norm.weight", {"norm.weight"}},
                  {"lm_head.weight", {"output.weight"}}},
      .passed_over = {"lm_head.weight"},
      .fields = {{"vocab_size", "vocab_size"},
                 {"hidden_size", "dim"},
                 {"intermediate_size", "ffn_dim"},
                 {"num_hidden_layers", "n_layers"},
                 {"num_attention_heads", "n_heads"},
                 {"num_key_value_heads", "n_kv_heads", "num_attention_heads"},
                 {"head_dim", "head_dim", "128"},
                 {"max_position_embeddings", "max_seq_len"},
                 {"rms_norm_eps", "norm_eps", "1e-6"},
                 {"tie_word_embeddings", "enable_weight_tying", "false"}},
      .fixed = {{"hidden_act", {"\"silu\""}},
                {"attention_bias", {"false"}},
                {"attention_dropout", {"0.0"}, true},
                {"use_sliding_window", {"false"}}},
      .rope = true};
  return names;
}

}  // namespace tessera::qwen3
