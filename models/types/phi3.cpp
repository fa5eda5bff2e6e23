// SPDX-License-Identifier: Apache-2.0
// Phi 3 and Phi 4 mini (Microsoft, 2024): Llama with joined matrices, LongRoPE, and RoPE of a part
// of the head.
#include "tessera/models/types/rows.h"
#include "tessera/models/types/types.h"

namespace tessera::models::types {

const Type& phi3() {
  static const Gguf llama_cpp =
      gguf({.name = "phi3", .fused_qkv = true, .fused_gated = true, .longrope = true});
  static const Type type{
      .description = "Phi 3 and Phi 4 (Microsoft, 2024)",
      .architecture = {},
      .names = {.model_type = "phi3",
                .architecture = "Phi3ForCausalLM",
                .prefix = "model.",
                .tensors = rows(joined(
                    joined(embeddings(), norms_before()),
                    {{".self_attn.qkv_proj", {".attention.wq", ".attention.wk", ".attention.wv"}},
                     {".self_attn.o_proj", {".attention.wo"}},
                     {".mlp.gate_up_proj", {".feed_forward.w1", ".feed_forward.w3"}},
                     {".mlp.down_proj", {".feed_forward.w2"}}})),
                .tied = tied_head(),
                .fields = joined(with_defaults(llama_fields(), {{"norm_eps", "1e-5"}}),
                                 {sliding_window("0")}),
                .fixed =
                    joined(silu(), {{"embd_pdrop", {"0.0"}, true}, {"resid_pdrop", {"0.0"}, true}}),
                .simplify = simplify,
                .rope = true,
                .rope_kinds = {"longrope"},
                .gguf = &llama_cpp},
      .sizes = {{"mini",
                 "dim=3072 n_layers=32 n_heads=32 n_kv_heads=32 ffn_dim=8192 vocab_size=32064 "
                 "max_seq_len=4096 sliding_window=2047"}},
      .rope_fields = {"partial_rotary_factor"}};
  return type;
}

}  // namespace tessera::models::types
