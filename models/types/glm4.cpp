// SPDX-License-Identifier: Apache-2.0
// GLM 4 (Zhipu AI, 2025): norms on both sides, RoPE of adjacent pairs of half the head.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& glm4() {
  static const Gguf llama_cpp = gguf({.name = "glm4", .qkv_bias = Has::may, .fused_gated = true});
  static const Type type{
      .description = "GLM 4 (Zhipu AI, 2025)",
      .architecture = {.positions = {.kind = Architecture::Positions::Kind::pairs,
                                     .partial_rotary_factor = 0.5},
                       .residual = {.after = true}},
      .names = {.model_type = "glm4",
                .architecture = "Glm4ForCausalLM",
                .prefix = "model.",
                .tensors =
                    rows(joined(joined(embeddings(), attention()),
                                {{".mlp.gate_up_proj", {".feed_forward.w1", ".feed_forward.w3"}},
                                 {".mlp.down_proj", {".feed_forward.w2"}},
                                 {".input_layernorm", {".attention_norm"}},
                                 {".post_self_attn_layernorm", {".attention_post_norm"}},
                                 {".post_attention_layernorm", {".ffn_norm"}},
                                 {".post_mlp_layernorm", {".ffn_post_norm"}}})),
                .tied = tied_head(),
                .fields = joined(
                    with_defaults(llama_fields(),
                                  {{"n_kv_heads", "2"}, {"norm_eps", "1.5625e-07"}}),
                    {{"head_dim", "head_dim", "128", "0"}, {"attention_bias", "qkv_bias", "true"}}),
                .fixed = silu(),
                .derived = {whole_head_dim()},
                .simplify = simplify,
                .rope = true,
                .partial_rotary = 0.5,
                .gguf = &llama_cpp},
      .sizes = {{"9B",
                 "dim=4096 n_layers=40 n_heads=32 n_kv_heads=2 head_dim=128 ffn_dim=13696 "
                 "vocab_size=151552 max_seq_len=32768 norm_eps=1e-5 qkv_bias=true"}},
      .rope_fields = {"partial_rotary_factor"}};
  return type;
}

}  // namespace tessera::models::types
