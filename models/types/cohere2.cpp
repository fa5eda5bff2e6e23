// SPDX-License-Identifier: Apache-2.0
// Command R7B (Cohere, 2024): attention and feed-forward side by side behind one LayerNorm; layers
// with a window have RoPE, the others no positions.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& cohere2() {
  static const Gguf llama_cpp = gguf(
      {.name = "cohere2",
       .head = Has::no,
       .windows = Windows::alike,
       .window_pattern = 4,
       .own = {{"logit_scale", [](const Architecture& a) { return a.embeddings.logit_scale; }}},
       .limits = {{"heads of dim / n_heads", [](const Architecture& a) {
                     return a.head_dim() * a.attention.n_heads == a.dim;
                   }}}});
  static const Type type{
      .description = "Command R7B (Cohere, 2024)",
      .architecture = {.positions = {.kind = Architecture::Positions::Kind::pairs,
                                     .rope_in_windows_alone = true},
                       .spans = {.pattern = 4, .sliding_window = 4096},
                       .norm = {.kind = nn::Norm::Kind::layer, .bias = false},
                       .residual = {.parallel = true, .shared_norm = true}},
      .names = {.model_type = "cohere2",
                .architecture = "Cohere2ForCausalLM",
                .prefix = "model.",
                .tensors =
                    rows(joined(joined(embeddings(), attention()),
                                joined(gated_mlp(), {{".input_layernorm", {".attention_norm"}}}))),
                .tied = tied_head(),
                .fields =
                    joined(joined(layer_norm_fields("layer_norm_eps", "true"), attention_bias()),
                           {head_dim(),
                            {"logit_scale", "logit_scale", "0.0625"},
                            {"sliding_window", "sliding_window", "4096"},
                            {"sliding_window_pattern",
                             "sliding_window_pattern",
                             "4",
                             "4",
                             {"_sliding_window_pattern", "layer_switch"}},
                            layer_types()}),
                .fields_passed_over = {"use_embedding_sharing", "use_parallel_embedding"},
                .fixed = joined(silu(), {{"order_of_interleaved_layers", {"\"local_attn_first\""}},
                                         {"position_embedding_type", {"\"rope_gptj\""}},
                                         {"use_parallel_block", {"true"}},
                                         {"use_gated_activation", {"true"}}}),
                .derived = {whole_head_dim(), all_layer_types()},
                .simplify = simplify,
                .rope = true,
                .gguf = &llama_cpp},
      .sizes = {{"R7B",
                 "dim=4096 n_layers=32 n_heads=32 n_kv_heads=8 ffn_dim=14336 vocab_size=256000 "
                 "max_seq_len=132096 rope_theta=5e4 logit_scale=0.25 enable_weight_tying=true"}}};
  return type;
}

}  // namespace tessera::models::types
