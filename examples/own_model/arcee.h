// SPDX-License-Identifier: Apache-2.0
// A type of Hugging Face models as a description: Arcee's AFM is Llama with a plain feed-forward of
// squared ReLU. Its folders load by `--model.initial_hf`, and runs export them.
#pragma once

#include <tessera/models/types/rows.h>

namespace own {

inline const tessera::models::Type& arcee() {
  using namespace tessera::models::types;
  static const tessera::models::Type type{
      .description = "Arcee AFM (2025)",
      .architecture = {.feed_forward = {.gated = false,
                                        .nonlinearity = tessera::nn::Nonlinearity::relu_squared}},
      .names = {.model_type = "arcee",
                .architecture = "ArceeForCausalLM",
                .prefix = "model.",
                .tensors = rows(
                    joined(joined(embeddings(), attention()),
                           joined(norms_before(), {{".mlp.up_proj", {".feed_forward.w1"}},
                                                   {".mlp.down_proj", {".feed_forward.w2"}}}))),
                .tied = tied_head(),
                .fields = joined(
                    llama_fields(),
                    joined(attention_bias(), {head_dim(), {"mlp_bias", "ffn_bias", "false"}})),
                .fixed = {{"hidden_act", {"\"relu2\""}}, {"attention_dropout", {"0.0"}, true}},
                .derived = {whole_head_dim()},
                .simplify = simplify,
                .rope = true},
      .sizes = {{"tiny",
                 "dim=64 n_layers=2 n_heads=4 n_kv_heads=2 ffn_dim=128 vocab_size=272 "
                 "max_seq_len=256"}}};
  return type;
}

}  // namespace own
