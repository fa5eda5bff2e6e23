// SPDX-License-Identifier: Apache-2.0
// Mistral (Mistral AI, 2023): Llama with a window in all layers.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& mistral() {
  static const Gguf llama_cpp = gguf({.name = "llama",
                                      .heads = HfChange::pairs,
                                      .qkv_bias = Has::may,
                                      .output_bias = Has::may,
                                      .ffn_bias = Has::may,
                                      .rope_divisors = true});
  static const Type type{
      .description = "Mistral (Mistral AI, 2023)",
      .architecture = {.spans = {.sliding_window = 4096}},
      .names = {.model_type = "mistral",
                .architecture = "MistralForCausalLM",
                .prefix = "model.",
                .within = text_of("mistral3"),
                .tensors = rows(llama_modules()),
                .tied = tied_head(),
                .fields = joined(with_defaults(llama_fields(), {{"n_kv_heads", "8"}}),
                                 {head_dim(), sliding_window("4096")}),
                .fixed = silu(),
                .derived = {whole_head_dim()},
                .simplify = simplify,
                .rope = true,
                .gguf = &llama_cpp},
      .sizes = {{"7B",
                 "dim=4096 n_layers=32 n_heads=32 n_kv_heads=8 ffn_dim=14336 vocab_size=32000 "
                 "max_seq_len=32768 sliding_window=4096"}}};
  return type;
}

}  // namespace tessera::models::types
