// SPDX-License-Identifier: Apache-2.0
// GPT-2 under the names of transformers, whose linears are OpenAI's Conv1D: weights are (in, out),
// and those of queries, keys and values are one. OpenAI trained with dropout of attention weights
// (attn_pdrop), which attention here does not have.
#include "tessera/models/hugging_face.h"

#include "tessera/models/gpt2/gpt2.h"

namespace tessera::gpt2 {

const models::HuggingFace& hugging_face() {
  using models::HfChange;
  static const models::HuggingFace names{
      .model_type = "gpt2",
      .architecture = "GPT2LMHeadModel",
      .prefix = "transformer.",
      .tensors = {{"transformer.wte.weight", {"tok_embeddings.weight"}},
                  {"transformer.wpe.weight", {"pos_embeddings.weight"}},
                  {"transformer.h.#.attn.c_attn.weight",
                   {"layers.#.attention.wq.weight", "layers.#.attention.wk.weight",
                    "layers.#.attention.wv.weight"},
                   HfChange::transposed},
                  {"transformer.h.#.attn.c_attn.bias",
                   {"layers.#.attention.wq.bias", "layers.#.attention.wk.bias",
                    "layers.#.attention.wv.bias"}},
                  {"transformer.h.#.attn.c_proj.weight",
                   {"layers.#.attention.wo.weight"},
                   HfChange::transposed},
                  {"transformer.h.#.attn.c_proj.bias", {"layers.#.attention.wo.bias"}},
                  {"transformer.h.#.mlp.c_fc.weight",
                   {"layers.#.feed_forward.w1.weight"},
                   HfChange::transposed},
                  {"transformer.h.#.mlp.c_fc.bias", {"layers.#.feed_forward.w1.bias"}},
                  {"transformer.h.#.mlp.c_proj.weight",
                   {"layers.#.feed_forward.w2.weight"},
                   HfChange::transposed},
                  {"transformer.h.#.mlp.c_proj.bias", {"layers.#.feed_forward.w2.bias"}},
                  {"transformer.h.#.ln_1.weight", {"layers.#.attention_norm.weight"}},
                  {"transformer.h.#.ln_1.bias", {"layers.#.attention_norm.bias"}},
                  {"transformer.h.#.ln_2.weight", {"layers.#.ffn_norm.weight"}},
                  {"transformer.h.#.ln_2.bias", {"layers.#.ffn_norm.bias"}},
                  {"lm_head.weight", {"output.weight"}},
                  {"transformer.ln_f.weight", {"norm.weight"}},
                  {"transformer.ln_f.bias", {"norm.bias"}}},
      .passed_over = {"transformer.h.#.attn.bias", "transformer.h.#.attn.masked_bias"},
      .tied = {{"lm_head.weight", "transformer.wte.weight", "tie_word_embeddings"}},
      .fields = {{"vocab_size", "vocab_size"},
                 {"n_embd", "dim", "", "", {"hidden_size"}},
                 {"n_layer", "n_layers", "", "", {"num_hidden_layers"}},
                 {"n_head", "n_heads", "", "", {"num_attention_heads"}},
                 {"n_positions", "max_seq_len", "", "", {"max_position_embeddings"}},
                 {"layer_norm_epsilon", "norm_eps", "1e-5"},
                 {"embd_pdrop", "embedding_dropout", "0.1"},
                 {"resid_pdrop", "residual_dropout", "0.1"},
                 {"n_inner", "ffn_dim", "0", "0"},
                 {"activation_function", "activation_function", "\"gelu_new\""},
                 {"tie_word_embeddings", "enable_weight_tying", "true"}},
      .fixed = {{"scale_attn_weights", {"true"}},
                {"scale_attn_by_inverse_layer_idx", {"false"}},
                {"add_cross_attention", {"false"}},
                {"attn_pdrop", {"0.0"}, true}},
      .derived = {{"n_inner",
                   [](const models::ModelConfig& c) {
                     return std::to_string(c.as<Config>().ffn_dim());
                   },
                   {"n_embd"}}},
      .simplify =
          [](models::ModelConfig& config) {
            auto& c = config.as<Config>();
            if (c.own_ffn_dim == 4 * c.dim) c.own_ffn_dim = 0;
          },
      .gguf = &gguf()};
  return names;
}

}  // namespace tessera::gpt2
