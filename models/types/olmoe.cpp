// SPDX-License-Identifier: Apache-2.0
// OLMoE (Ai2, 2024): 64 experts in all layers, norms of whole queries and keys.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& olmoe() {
  static const Gguf llama_cpp =
      gguf({.name = "olmoe",
            .head = Has::must,
            .limits = {{"as many heads of keys as of queries", [](const Architecture& a) {
                          return a.attention.n_heads == a.kv_heads();
                        }}}});
  static const Type type{
      .description = "OLMoE (Ai2, 2024)",
      .architecture = {.attention = {.qk_norm = Architecture::Attention::QkNorm::whole}},
      .names = {.model_type = "olmoe",
                .architecture = "OlmoeForCausalLM",
                .prefix = "model.",
                .tensors = joined(rows(joined(joined(embeddings(), attention()), norms_before())),
                                  experts_apart()),
                .tied = tied_head(),
                .fields = joined(joined(with_defaults(experts_fields("64", "8", "num_experts"),
                                                      {{"norm_eps", "1e-5"}}),
                                        attention_bias()),
                                 {{"norm_topk_prob", "route_norm", "false"}}),
                .fixed = joined(silu(), {{"clip_qkv", {"null"}}}),
                .fixed_ours = plain_routing(),
                .simplify = simplify,
                .rope = true,
                .gguf = &llama_cpp},
      .sizes = {{"1B-7B",
                 "dim=2048 n_layers=16 n_heads=16 n_kv_heads=16 moe_inter_dim=1024 num_experts=64 "
                 "top_k=8 vocab_size=50304 max_seq_len=4096"}}};
  return type;
}

}  // namespace tessera::models::types
