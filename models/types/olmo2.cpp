// SPDX-License-Identifier: Apache-2.0
// OLMo 2 (Ai2, 2024): norms of what attention and feed-forward give, and of whole queries and keys.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& olmo2() {
  static const Gguf llama_cpp = gguf({.name = "olmo2", .head = Has::must});
  static const Type type{
      .description = "OLMo 2 (Ai2, 2024)",
      .architecture = {.attention = {.qk_norm = Architecture::Attention::QkNorm::whole},
                       .residual = {.before = false, .after = true}},
      .names = {.model_type = "olmo2",
                .architecture = "Olmo2ForCausalLM",
                .prefix = "model.",
                .tensors = rows(olmo2_modules()),
                .tied = tied_head(),
                .fields =
                    joined(with_defaults(llama_fields(), {{"norm_eps", "1e-5"}}), attention_bias()),
                .fixed = silu(),
                .simplify = simplify,
                .rope = true,
                .gguf = &llama_cpp},
      .sizes = {{"7B",
                 "dim=4096 n_layers=32 n_heads=32 n_kv_heads=32 ffn_dim=11008 vocab_size=100352 "
                 "max_seq_len=4096 rope_theta=5e5 norm_eps=1e-6"}}};
  return type;
}

}  // namespace tessera::models::types
