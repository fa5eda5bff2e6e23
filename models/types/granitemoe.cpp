// SPDX-License-Identifier: Apache-2.0
// Granite 3 with experts (IBM, 2024), whose tensors are joined.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& granitemoe() {
  static const Gguf llama_cpp = gguf({.name = "granitemoe",
                                      .heads = HfChange::pairs,
                                      .qkv_bias = Has::may,
                                      .output_bias = Has::may,
                                      .route_norm = true,
                                      .rope_divisors = true,
                                      .own = gguf_multipliers()});
  static const Type type{
      .description = "Granite 3 with experts (IBM, 2024)",
      .architecture = {.attention = {.multiplier = 1}, .experts = {.moe = {.route_norm = true}}},
      .names = {.model_type = "granitemoe",
                .architecture = "GraniteMoeForCausalLM",
                .prefix = "model.",
                .tensors =
                    joined(rows(joined(joined(embeddings(), attention()),
                                       joined(norms_before(), {{".block_sparse_moe.router.layer",
                                                                {".moe.router.gate"}}}))),
                           {{.theirs = "model.layers.#.block_sparse_moe.input_linear.weight",
                             .ours = {"layers.#.moe.experts.w1", "layers.#.moe.experts.w3"},
                             .experts = HfExperts::together},
                            {.theirs = "model.layers.#.block_sparse_moe.output_linear.weight",
                             .ours = {"layers.#.moe.experts.w2"},
                             .experts = HfExperts::together}}),
                .tied = tied_head(),
                .fields = joined(joined(experts_fields("8", "2"), attention_bias()), multipliers()),
                .fixed = silu(),
                .fixed_ours = joined(plain_routing(), {{"route_norm", "true"}}),
                .simplify = simplify,
                .rope = true,
                .gguf = &llama_cpp},
      .sizes = {{"1B-A400M",
                 "dim=1024 n_layers=24 n_heads=16 n_kv_heads=8 moe_inter_dim=512 num_experts=32 "
                 "top_k=8 vocab_size=49155 max_seq_len=4096 embedding_multiplier=12 "
                 "logits_scaling=6 residual_multiplier=0.22 attention_multiplier=0.015625 "
                 "enable_weight_tying=true"}}};
  return type;
}

}  // namespace tessera::models::types
