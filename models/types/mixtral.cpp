// SPDX-License-Identifier: Apache-2.0
// Mixtral (Mistral AI, 2024): Mistral with experts in all layers, of which a token takes the best
// by the softmax over these alone.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& mixtral() {
  static const Gguf llama_cpp = gguf({.name = "llama",
                                      .heads = HfChange::pairs,
                                      .qkv_bias = Has::may,
                                      .output_bias = Has::may,
                                      .ffn_bias = Has::may,
                                      .route_norm = true,
                                      .rope_divisors = true});
  static const Type type{
      .description = "Mixtral (Mistral AI, 2024)",
      .architecture = {.experts = {.moe = {.route_norm = true}}},
      .names = {.model_type = "mixtral",
                .architecture = "MixtralForCausalLM",
                .prefix = "model.",
                .tensors = joined(rows(joined(joined(embeddings(), attention()),
                                              joined(norms_before(), {{".block_sparse_moe.gate",
                                                                       {".moe.router.gate"}}}))),
                                  {{.theirs = "model.layers.#.block_sparse_moe.experts.%.w1.weight",
                                    .ours = {"layers.#.moe.experts.w1"},
                                    .experts = HfExperts::apart},
                                   {.theirs = "model.layers.#.block_sparse_moe.experts.%.w2.weight",
                                    .ours = {"layers.#.moe.experts.w2"},
                                    .experts = HfExperts::apart},
                                   {.theirs = "model.layers.#.block_sparse_moe.experts.%.w3.weight",
                                    .ours = {"layers.#.moe.experts.w3"},
                                    .experts = HfExperts::apart}}),
                .tied = tied_head(),
                .fields = joined(with_defaults(experts_fields("8", "2"),
                                               {{"n_kv_heads", "8"}, {"norm_eps", "1e-5"}}),
                                 {head_dim(), sliding_window("0")}),
                .fixed = joined(silu(), {{"router_jitter_noise", {"0.0"}, true}}),
                .fixed_ours = joined(plain_routing(), {{"route_norm", "true"}}),
                .derived = {whole_head_dim()},
                .simplify = simplify,
                .rope = true,
                .rope_theta = 1e6,
                .gguf = &llama_cpp},
      .sizes = {{"8x7B",
                 "dim=4096 n_layers=32 n_heads=32 n_kv_heads=8 moe_inter_dim=14336 num_experts=8 "
                 "top_k=2 vocab_size=32000 max_seq_len=32768 rope_theta=1e6"}}};
  return type;
}

}  // namespace tessera::models::types
