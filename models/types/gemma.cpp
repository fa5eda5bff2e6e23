// SPDX-License-Identifier: Apache-2.0
// Gemma (Google, 2024): norms with 1 + weight, embeddings times the root of their size, heads of
// 256.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& gemma() {
  static const Gguf llama_cpp = gguf({.name = "gemma", .head = Has::no, .plus_in_norms = 1});
  static const Type type{
      .description = "Gemma (Google, 2024)",
      .architecture = {.feed_forward = {.nonlinearity = nn::Nonlinearity::gelu_tanh},
                       .norm = {.weight_offset = 1},
                       .embeddings = {.times_root_of_dim = true}},
      .names = {.model_type = "gemma",
                .architecture = "GemmaForCausalLM",
                .prefix = "model.",
                .tensors = rows(llama_modules()),
                .tied = tied_head(),
                .fields = joined(joined(with_defaults(llama_fields("true"), {{"n_kv_heads", "16"}}),
                                        attention_bias()),
                                 {{"head_dim", "head_dim", "256"}}),
                // Its "gelu" is the tanh approximation too.
                .fixed = {{"hidden_act", {"\"gelu_pytorch_tanh\"", "\"gelu\"", "\"gelu_new\""}},
                          {"hidden_activation", {"\"gelu_pytorch_tanh\"", "null"}},
                          {"attention_dropout", {"0.0"}, true}},
                .derived = {whole_head_dim()},
                .simplify = simplify,
                .rope = true,
                .gguf = &llama_cpp},
      .sizes = {{"2B",
                 "dim=2048 n_layers=18 n_heads=8 n_kv_heads=1 head_dim=256 ffn_dim=16384 "
                 "vocab_size=256000 max_seq_len=8192 enable_weight_tying=true"},
                {"7B",
                 "dim=3072 n_layers=28 n_heads=16 n_kv_heads=16 head_dim=256 ffn_dim=24576 "
                 "vocab_size=256000 max_seq_len=8192 enable_weight_tying=true"}}};
  return type;
}

}  // namespace tessera::models::types
