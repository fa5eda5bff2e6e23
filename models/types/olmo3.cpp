// SPDX-License-Identifier: Apache-2.0
// OLMo 3 (Ai2, 2025): OLMo 2 with a window in three layers of four, which have no scaling of RoPE.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& olmo3() {
  static const Type type{
      .description = "OLMo 3 (Ai2, 2025)",
      .architecture = {.attention = {.qk_norm = Architecture::Attention::QkNorm::whole},
                       .positions = {.theta = 5e5, .local_theta = 5e5},
                       .spans = {.pattern = 4, .sliding_window = 4096},
                       .residual = {.before = false, .after = true}},
      .names = {.model_type = "olmo3",
                .architecture = "Olmo3ForCausalLM",
                .prefix = "model.",
                .tensors = rows(olmo2_modules()),
                .tied = tied_head(),
                .fields = joined(
                    joined(with_defaults(llama_fields(), {{"norm_eps", "1e-5"}}), attention_bias()),
                    {{"sliding_window", "sliding_window", "4096"}, layer_types()}),
                .fixed = silu(),
                .derived = {all_layer_types()},
                .simplify = simplify,
                .rope = true,
                .rope_theta = 5e5,
                .rope_local_theta = 0},
      .sizes = {{"7B",
                 "dim=4096 n_layers=32 n_heads=32 n_kv_heads=32 ffn_dim=11008 vocab_size=100278 "
                 "max_seq_len=8192 norm_eps=1e-6"}},
      .rope_fields = {"rope_local_theta"}};
  return type;
}

}  // namespace tessera::models::types
