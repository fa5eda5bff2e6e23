// SPDX-License-Identifier: Apache-2.0
// GPT-NeoX and Pythia (EleutherAI, 2022): attention and feed-forward side by side with a LayerNorm
// each; queries, keys and values are one matrix, in turns by heads.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& gpt_neox() {
  static const Gguf llama_cpp = gguf({.name = "gptneox",
                                      .qkv_bias = Has::must,
                                      .output_bias = Has::must,
                                      .ffn_bias = Has::must,
                                      .head = Has::must,
                                      .fused_qkv = true,
                                      .gated = false,
                                      .own = {{"use_parallel_residual", [](const Architecture& a) {
                                                 return a.residual.parallel;
                                               }}}});
  static const Type type{
      .description = "GPT-NeoX and Pythia (EleutherAI, 2022)",
      .architecture = {.attention = {.qkv_bias = true, .output_bias = true},
                       .positions = {.partial_rotary_factor = 0.25},
                       .feed_forward = {.gated = false,
                                        .bias = true,
                                        .nonlinearity = nn::Nonlinearity::gelu},
                       .norm = {.kind = nn::Norm::Kind::layer},
                       .residual = {.parallel = true}},
      .names = {.model_type = "gpt_neox",
                .architecture = "GPTNeoXForCausalLM",
                .prefix = "gpt_neox.",
                .tensors = rows({{"gpt_neox.embed_in", {"tok_embeddings"}},
                                 {"gpt_neox.final_layer_norm", {"norm"}},
                                 {"embed_out", {"output"}},
                                 {".attention.query_key_value",
                                  {".attention.wq", ".attention.wk", ".attention.wv"},
                                  HfJoin::heads},
                                 {".attention.dense", {".attention.wo"}},
                                 {".mlp.dense_h_to_4h", {".feed_forward.w1"}},
                                 {".mlp.dense_4h_to_h", {".feed_forward.w2"}},
                                 {".input_layernorm", {".attention_norm"}},
                                 {".post_attention_layernorm", {".ffn_norm"}}},
                                "gpt_neox.layers.#"),
                .passed_over = {"gpt_neox.layers.#.attention.bias",
                                "gpt_neox.layers.#.attention.masked_bias",
                                "gpt_neox.layers.#.attention.rotary_emb.inv_freq"},
                .tied = {{"embed_out.weight", "gpt_neox.embed_in.weight", "tie_word_embeddings"}},
                .fields =
                    joined(without(layer_norm_fields("layer_norm_eps", "false"), "n_kv_heads"),
                           joined(attention_bias("true"),
                                  {{"use_parallel_residual", "use_parallel_residual", "true"},
                                   {"hidden_act", "hidden_act", "\"gelu\""}})),
                .fields_passed_over = {"attention_probs_dropout_prob", "hidden_dropout_prob"},
                .fixed = {{"attention_dropout", {"0.0"}, true}, {"hidden_dropout", {"0.0"}, true}},
                .simplify = simplify,
                .rope = true,
                .rope_theta_name = "rotary_emb_base",
                .partial_rotary = 0.25,
                .partial_rotary_name = "rotary_pct",
                .head_dim = head_dim_of,
                .gguf = &llama_cpp},
      .sizes = {{"1.4B",
                 "dim=2048 n_layers=24 n_heads=16 ffn_dim=8192 vocab_size=50304 max_seq_len=2048"},
                {"20B",
                 "dim=6144 n_layers=44 n_heads=64 ffn_dim=24576 vocab_size=50432 "
                 "max_seq_len=2048 hidden_act=gelu_fast"}},
      .rope_fields = {"partial_rotary_factor"}};
  return type;
}

}  // namespace tessera::models::types
