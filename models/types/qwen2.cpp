// SPDX-License-Identifier: Apache-2.0
// Qwen 2 and 2.5 (Alibaba, 2024): biases of queries, keys and values; later layers may have a
// window.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& qwen2() {
  static const Gguf llama_cpp = gguf({.name = "qwen2", .qkv_bias = Has::must});
  static const Type type{
      .description = "Qwen 2 and Qwen 2.5 (Alibaba, 2024)",
      .architecture = {.attention = {.qkv_bias = true}, .spans = {.use_sliding_window = false}},
      .names = {.model_type = "qwen2",
                .architecture = "Qwen2ForCausalLM",
                .prefix = "model.",
                .tensors = rows(llama_modules()),
                .tied = tied_head(),
                .fields = joined(with_defaults(llama_fields(), {{"n_kv_heads", "32"}}),
                                 {sliding_window("4096"),
                                  {"use_sliding_window", "use_sliding_window", "false"},
                                  {"max_window_layers", "max_window_layers", "28"},
                                  layer_types()}),
                .fixed = silu(),
                .derived = {all_layer_types()},
                .simplify = simplify,
                .rope = true,
                .gguf = &llama_cpp},
      .sizes = {{"0.5B",
                 "dim=896 n_layers=24 n_heads=14 n_kv_heads=2 ffn_dim=4864 vocab_size=151936 "
                 "max_seq_len=32768 rope_theta=1e6 enable_weight_tying=true"},
                {"1.5B",
                 "dim=1536 n_layers=28 n_heads=12 n_kv_heads=2 ffn_dim=8960 vocab_size=151936 "
                 "max_seq_len=32768 rope_theta=1e6 enable_weight_tying=true"},
                {"7B",
                 "dim=3584 n_layers=28 n_heads=28 n_kv_heads=4 ffn_dim=18944 vocab_size=152064 "
                 "max_seq_len=32768 rope_theta=1e6"}}};
  return type;
}

}  // namespace tessera::models::types
