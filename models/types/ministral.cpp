// SPDX-License-Identifier: Apache-2.0
// Ministral (Mistral AI, 2024): Mistral, in which each layer has the window or not.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& ministral() {
  static const Type type{
      .description = "Ministral (Mistral AI, 2024)",
      .architecture = {.spans = {.sliding_window = 4096}},
      .names = {.model_type = "ministral",
                .architecture = "MinistralForCausalLM",
                .prefix = "model.",
                .tensors = rows(llama_modules()),
                .tied = tied_head(),
                .fields = joined(
                    with_defaults(llama_fields(), {{"n_kv_heads", "8"}}),
                    {head_dim(), {"sliding_window", "sliding_window", "4096"}, layer_types()}),
                .fixed = silu(),
                .derived = {whole_head_dim(), all_layer_types()},
                .simplify = simplify,
                .rope = true},
      .sizes = {{"8B",
                 "dim=4096 n_layers=36 n_heads=32 n_kv_heads=8 head_dim=128 ffn_dim=12288 "
                 "vocab_size=131072 max_seq_len=32768 sliding_window=32768 rope_theta=1e8"}}};
  return type;
}

}  // namespace tessera::models::types
