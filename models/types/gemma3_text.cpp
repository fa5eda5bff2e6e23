// SPDX-License-Identifier: Apache-2.0
// Gemma 3 (Google, 2025), its text model: Gemma 2 with norms of queries and keys instead of caps;
// five layers of six have a window and a RoPE base of their own.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& gemma3_text() {
  static const Gguf llama_cpp =
      gguf({.name = "gemma3",
            .windows = Windows::own_theta,
            .window_pattern = 6,
            .plus_in_norms = 1,
            .own = {{"final_logit_softcapping",
                     [](const Architecture& a) { return a.embeddings.soft_cap; }}},
            .limits = {gemma_scores<62>(), {"no soft cap of scores", [](const Architecture& a) {
                                              return a.attention.soft_cap == 0;
                                            }}}});
  static const Type type{
      .description = "Gemma 3 (Google, 2025), text",
      .architecture = {.attention = {.qk_norm = Architecture::Attention::QkNorm::heads,
                                     .query_pre_attn_scalar = 256},
                       .positions = {.theta = 1e6, .local_theta = 1e4},
                       .spans = {.pattern = 6, .sliding_window = 4096},
                       .feed_forward = {.nonlinearity = nn::Nonlinearity::gelu_tanh},
                       .norm = {.weight_offset = 1},
                       .residual = {.after = true},
                       .embeddings = {.times_root_of_dim = true}},
      .names = {.model_type = "gemma3_text",
                .architecture = "Gemma3ForCausalLM",
                .prefix = "model.",
                .within = text_of("gemma3"),
                .tensors = rows(gemma2_modules()),
                .tied = tied_head(),
                .fields = joined(
                    joined(with_defaults(llama_fields("true"), {{"n_kv_heads", "4"},
                                                                {"n_heads", "8"},
                                                                {"vocab_size", "262208"},
                                                                {"max_seq_len", "131072"},
                                                                {"dim", "2304"},
                                                                {"ffn_dim", "9216"},
                                                                {"n_layers", "26"}}),
                           attention_bias()),
                    {{"head_dim", "head_dim", "256"},
                     {"query_pre_attn_scalar", "query_pre_attn_scalar", "256"},
                     {"attn_logit_softcapping", "attn_logit_softcapping", "0", "0"},
                     {"final_logit_softcapping", "final_logit_softcapping", "0", "0"},
                     {"sliding_window", "sliding_window", "4096"},
                     {"sliding_window_pattern",
                      "sliding_window_pattern",
                      "6",
                      "6",
                      {"_sliding_window_pattern"}},
                     layer_types()}),
                .fields_passed_over = {"hidden_act"},
                .fixed = gelu_tanh("hidden_activation"),
                .derived = {whole_head_dim(), all_layer_types()},
                .simplify = simplify,
                .rope = true,
                .rope_theta = 1e6,
                .rope_local_theta = 1e4,
                .gguf = &llama_cpp},
      .sizes = {{"1B",
                 "dim=1152 n_layers=26 n_heads=4 n_kv_heads=1 head_dim=256 ffn_dim=6912 "
                 "vocab_size=262144 max_seq_len=32768 sliding_window=512 "
                 "enable_weight_tying=true"}},
      .rope_fields = {"rope_local_theta"}};
  return type;
}

}  // namespace tessera::models::types
