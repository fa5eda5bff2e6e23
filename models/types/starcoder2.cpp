// SPDX-License-Identifier: Apache-2.0
// StarCoder 2 (BigCode, 2024): LayerNorm, biases, a plain feed-forward and a window in all layers.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& starcoder2() {
  static const Gguf llama_cpp = gguf({.name = "starcoder2",
                                      .qkv_bias = Has::may,
                                      .output_bias = Has::must,
                                      .ffn_bias = Has::must,
                                      .gated = false});
  static const Type type{
      .description = "StarCoder 2 (BigCode, 2024)",
      .architecture = {.attention = {.qkv_bias = true, .output_bias = true},
                       .feed_forward = {.gated = false,
                                        .bias = true,
                                        .nonlinearity = nn::Nonlinearity::gelu_tanh},
                       .norm = {.kind = nn::Norm::Kind::layer}},
      .names = {.model_type = "starcoder2",
                .architecture = "Starcoder2ForCausalLM",
                .prefix = "model.",
                .tensors =
                    rows(joined(joined(embeddings(), attention()),
                                joined(norms_before(), {{".mlp.c_fc", {".feed_forward.w1"}},
                                                        {".mlp.c_proj", {".feed_forward.w2"}}}))),
                .tied = tied_head(),
                .fields = joined(
                    with_defaults(layer_norm_fields("norm_epsilon", "true"), {{"n_kv_heads", "2"}}),
                    {{"use_bias", "qkv_bias", "true"},
                     {"use_bias", "output_bias", "true"},
                     {"use_bias", "ffn_bias", "true"},
                     sliding_window("0")}),
                .fields_passed_over = {"rms_norm_eps", "activation_function", "layer_norm_epsilon",
                                       "scale_attn_weights", "attention_softmax_in_fp32",
                                       "scale_attention_softmax_in_fp32", "mlp_type", "norm_type"},
                .fixed = joined(gelu_tanh("hidden_act"), {{"residual_dropout", {"0.0"}, true},
                                                          {"embedding_dropout", {"0.0"}, true}}),
                .simplify = simplify,
                .rope = true,
                .gguf = &llama_cpp},
      .sizes = {{"3B",
                 "dim=3072 n_layers=30 n_heads=24 n_kv_heads=2 ffn_dim=12288 vocab_size=49152 "
                 "max_seq_len=16384 sliding_window=4096 rope_theta=999999.4420358813 "
                 "enable_weight_tying=true"}}};
  return type;
}

}  // namespace tessera::models::types
