// SPDX-License-Identifier: Apache-2.0
// Gemma 2 (Google, 2024): Gemma with norms on both sides of attention and feed-forward, soft caps,
// and a window in every second layer.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& gemma2() {
  static const Gguf llama_cpp = gguf(
      {.name = "gemma2",
       .head = Has::no,
       .windows = Windows::alike,
       .window_pattern = 2,
       .plus_in_norms = 1,
       .own = {{"attn_logit_softcapping",
                [](const Architecture& a) { return a.attention.soft_cap; }},
               {"final_logit_softcapping",
                [](const Architecture& a) { return a.embeddings.soft_cap; }}},
       .limits = {gemma_scores<46>(), {"soft caps of scores and logits", [](const Architecture& a) {
                                         return a.attention.soft_cap > 0 &&
                                                a.embeddings.soft_cap > 0;
                                       }}}});
  static const Type type{
      .description = "Gemma 2 (Google, 2024)",
      .architecture = {.attention = {.query_pre_attn_scalar = 256, .soft_cap = 50},
                       .spans = {.pattern = 2, .sliding_window = 4096},
                       .feed_forward = {.nonlinearity = nn::Nonlinearity::gelu_tanh},
                       .norm = {.weight_offset = 1},
                       .residual = {.after = true},
                       .embeddings = {.times_root_of_dim = true, .soft_cap = 30}},
      .names = {.model_type = "gemma2",
                .architecture = "Gemma2ForCausalLM",
                .prefix = "model.",
                .tensors = rows(gemma2_modules()),
                .tied = tied_head(),
                .fields =
                    joined(joined(with_defaults(llama_fields("true"), {{"n_kv_heads", "4"}}),
                                  attention_bias()),
                           {{"head_dim", "head_dim", "256"},
                            {"query_pre_attn_scalar", "query_pre_attn_scalar", "256"},
                            {"attn_logit_softcapping", "attn_logit_softcapping", "50.0", "0"},
                            {"final_logit_softcapping", "final_logit_softcapping", "30.0", "0"},
                            {"sliding_window", "sliding_window", "4096"},
                            layer_types()}),
                .fields_passed_over = {"hidden_act", "sliding_window_size"},
                .fixed = gelu_tanh("hidden_activation"),
                .derived = {whole_head_dim(), all_layer_types()},
                .simplify = simplify,
                .rope = true,
                .gguf = &llama_cpp},
      .sizes = {{"2B",
                 "dim=2304 n_layers=26 n_heads=8 n_kv_heads=4 head_dim=256 ffn_dim=9216 "
                 "vocab_size=256000 max_seq_len=8192 enable_weight_tying=true"},
                {"9B",
                 "dim=3584 n_layers=42 n_heads=16 n_kv_heads=8 head_dim=256 ffn_dim=14336 "
                 "vocab_size=256000 max_seq_len=8192 enable_weight_tying=true"},
                {"27B",
                 "dim=4608 n_layers=46 n_heads=32 n_kv_heads=16 head_dim=128 ffn_dim=36864 "
                 "vocab_size=256000 max_seq_len=8192 enable_weight_tying=true "
                 "query_pre_attn_scalar=144"}}};
  return type;
}

}  // namespace tessera::models::types
