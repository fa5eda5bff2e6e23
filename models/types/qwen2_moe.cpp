// SPDX-License-Identifier: Apache-2.0
// Qwen1.5-MoE and Qwen2-MoE (Alibaba, 2024): experts, and a shared one behind a sigmoid gate.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& qwen2_moe() {
  static const Gguf llama_cpp =
      gguf({.name = "qwen2moe", .qkv_bias = Has::may, .head = Has::must, .expert_length = true});
  static const Type type{
      .description = "Qwen1.5-MoE and Qwen2-MoE (Alibaba, 2024)",
      .architecture = {.attention = {.qkv_bias = true},
                       .spans = {.pattern = 2, .before_max = true, .use_sliding_window = false},
                       .experts = {.shared_experts = 1, .shared_gate = true}},
      .names = {.model_type = "qwen2_moe",
                .architecture = "Qwen2MoeForCausalLM",
                .prefix = "model.",
                .tensors = joined(
                    rows(joined(llama_modules(),
                                {{".mlp.shared_expert.gate_proj", {".moe.shared_experts.w1"}},
                                 {".mlp.shared_expert.up_proj", {".moe.shared_experts.w3"}},
                                 {".mlp.shared_expert.down_proj", {".moe.shared_experts.w2"}},
                                 {".mlp.shared_expert_gate", {".moe.shared_expert_gate"}}})),
                    experts_apart()),
                .tied = tied_head(),
                .fields = joined(with_defaults(llama_fields(), {{"n_kv_heads", "16"}}),
                                 {sliding_window("4096"),
                                  {"use_sliding_window", "use_sliding_window", "false"},
                                  {"max_window_layers", "max_window_layers", "28"},
                                  layer_types(),
                                  {"num_experts", "num_experts", "60"},
                                  {"num_experts_per_tok", "top_k", "4"},
                                  {"moe_intermediate_size", "moe_inter_dim", "1408"},
                                  {"shared_expert_intermediate_size", "shared_expert_dim", "5632"},
                                  {"norm_topk_prob", "route_norm", "false"},
                                  {"decoder_sparse_step", "decoder_sparse_step", "1"},
                                  {"mlp_only_layers", "mlp_only_layers", "[]", "[]"},
                                  {"qkv_bias", "qkv_bias", "true"}}),
                .fixed = silu(),
                .fixed_ours = plain_routing(),
                .derived = {all_layer_types()},
                .simplify = simplify,
                .rope = true,
                .gguf = &llama_cpp},
      .sizes = {{"A2.7B",
                 "dim=2048 n_layers=24 n_heads=16 n_kv_heads=16 ffn_dim=5632 vocab_size=151936 "
                 "max_seq_len=8192 num_experts=60 top_k=4 moe_inter_dim=1408 "
                 "shared_expert_dim=5632 rope_theta=1e6 use_sliding_window=false"}}};
  return type;
}

}  // namespace tessera::models::types
