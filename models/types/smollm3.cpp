// SPDX-License-Identifier: Apache-2.0
// SmolLM 3 (Hugging Face, 2025): Llama in which every fourth layer has no RoPE.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& smollm3() {
  static const Gguf llama_cpp =
      gguf({.name = "smollm3",
            .heads = HfChange::pairs,
            .limits = {{"RoPE in all but every fourth layer", [](const Architecture& a) {
                          return a.positions.nope_layer_interval == 4;
                        }}}});
  static const Type type{
      .description = "SmolLM 3 (Hugging Face, 2025)",
      .architecture = {.positions = {.nope_layer_interval = 4},
                       .spans = {.without_rope = true, .use_sliding_window = false}},
      .names = {.model_type = "smollm3",
                .architecture = "SmolLM3ForCausalLM",
                .prefix = "model.",
                .tensors = rows(llama_modules()),
                .tied = tied_head(),
                .fields = joined(joined(with_defaults(llama_fields("true"), {{"n_kv_heads", "4"}}),
                                        attention_bias()),
                                 {{"mlp_bias", "ffn_bias", "false"},
                                  {"no_rope_layer_interval", "nope_layer_interval", "4"},
                                  {"use_sliding_window", "use_sliding_window", "false"},
                                  sliding_window("0"),
                                  layer_types()}),
                .fixed = silu(),
                .derived = {all_layer_types(), all_no_rope_layers()},
                .simplify = simplify,
                .rope = true,
                .rope_theta = 2e6,
                .gguf = &llama_cpp},
      .sizes = {{"3B",
                 "dim=2048 n_layers=36 n_heads=16 n_kv_heads=4 ffn_dim=11008 vocab_size=128256 "
                 "max_seq_len=65536 rope_theta=5e6 enable_weight_tying=true"}}};
  return type;
}

}  // namespace tessera::models::types
