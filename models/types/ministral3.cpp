// SPDX-License-Identifier: Apache-2.0
// Ministral 3 (Mistral AI, 2025): Mistral with YaRN, whose queries grow with their position as
// Llama 4's do.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& ministral3() {
  static const Type type{
      .description = "Ministral 3 (Mistral AI, 2025)",
      .architecture = {.positions = {.temperature = {.floor_scale = 0,
                                                     .with_rope = true,
                                                     .first_position = -1}}},
      .names = {.model_type = "ministral3",
                .architecture = "Ministral3ForCausalLM",
                .prefix = "model.",
                .within = text_of("mistral3"),
                .tensors = rows(llama_modules()),
                .tied = tied_head(),
                .fields = joined(
                    with_defaults(llama_fields(), {{"n_kv_heads", "8"}, {"norm_eps", "1e-5"}}),
                    {{"head_dim", "head_dim", "128", "0"},
                     sliding_window("0"),
                     {"rope_scaling.llama_4_scaling_beta",
                      "llama_4_scaling_beta",
                      "0",
                      "",
                      {"rope_parameters.llama_4_scaling_beta"}}}),
                .fixed = silu(),
                .derived = {whole_head_dim()},
                .simplify = simplify,
                .rope = true,
                .rope_theta = 1e6},
      .sizes = {{"8B",
                 "dim=4096 n_layers=34 n_heads=32 n_kv_heads=8 head_dim=128 ffn_dim=14336 "
                 "vocab_size=131072 max_seq_len=262144 rope_theta=1e6 rope_scaling=yarn "
                 "rope_scaling_factor=16 rope_original_max_position_embeddings=16384 "
                 "rope_beta_fast=32 rope_beta_slow=1 rope_mscale=1 rope_mscale_all_dim=1 "
                 "llama_4_scaling_beta=0.1"}}};
  return type;
}

}  // namespace tessera::models::types
