// SPDX-License-Identifier: Apache-2.0
// Granite 3 (IBM, 2024): Llama with factors of embeddings, scores, residuals and logits.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& granite() {
  static const Gguf llama_cpp = gguf({.name = "granite",
                                      .heads = HfChange::pairs,
                                      .qkv_bias = Has::may,
                                      .output_bias = Has::may,
                                      .ffn_bias = Has::may,
                                      .rope_divisors = true,
                                      .own = gguf_multipliers()});
  static const Type type{
      .description = "Granite 3 (IBM, 2024)",
      .architecture = {.attention = {.multiplier = 1}},
      .names = {.model_type = "granite",
                .architecture = "GraniteForCausalLM",
                .prefix = "model.",
                .tensors = rows(llama_modules()),
                .tied = tied_head(),
                .fields = joined(joined(joined(llama_fields(), attention_bias()), multipliers()),
                                 {{"mlp_bias", "ffn_bias", "false"}}),
                .fixed = silu(),
                .simplify = simplify,
                .rope = true,
                .gguf = &llama_cpp},
      .sizes = {
          {"2B",
           "dim=2048 n_layers=40 n_heads=32 n_kv_heads=8 ffn_dim=8192 vocab_size=49155 "
           "max_seq_len=4096 embedding_multiplier=12 logits_scaling=8 "
           "residual_multiplier=0.22 attention_multiplier=0.015625 enable_weight_tying=true"}}};
  return type;
}

}  // namespace tessera::models::types
