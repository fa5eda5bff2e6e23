// SPDX-License-Identifier: Apache-2.0
// StableLM (Stability AI, 2023): Llama with LayerNorm and RoPE of a quarter of the head; attention
// and feed-forward may stand side by side behind one norm.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& stablelm() {
  static const Gguf llama_cpp = gguf({.name = "stablelm", .qkv_bias = Has::may, .head = Has::must});
  static const Type type{
      .description = "StableLM without norms of queries and keys (Stability AI, 2023)",
      .architecture = {.positions = {.partial_rotary_factor = 0.25},
                       .norm = {.kind = nn::Norm::Kind::layer},
                       .residual = {.shared_norm = true}},
      .names = {.model_type = "stablelm",
                .architecture = "StableLmForCausalLM",
                .prefix = "model.",
                .tensors = rows(llama_modules()),
                .tied = tied_head(),
                .fields = joined(with_defaults(layer_norm_fields("layer_norm_eps", "false"),
                                               {{"n_kv_heads", "32"}}),
                                 {{"use_qkv_bias", "qkv_bias", "false"},
                                  {"use_parallel_residual", "use_parallel_residual", "false"}}),
                .fixed = joined(silu(),
                                {{"qk_layernorm", {"false"}}, {"hidden_dropout", {"0.0"}, true}}),
                .simplify = simplify,
                .rope = true,
                .partial_rotary = 0.25,
                .gguf = &llama_cpp},
      .sizes = {{"3B",
                 "dim=2560 n_layers=32 n_heads=32 n_kv_heads=32 ffn_dim=6912 vocab_size=50304 "
                 "max_seq_len=4096"}},
      .rope_fields = {"partial_rotary_factor"}};
  return type;
}

}  // namespace tessera::models::types
