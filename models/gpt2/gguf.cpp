// SPDX-License-Identifier: Apache-2.0
// GPT-2 under the names of llama.cpp, whose weights are (out, in), as ours are; those of queries,
// keys and values are one.
#include "tessera/models/gguf.h"

#include "tessera/models/gpt2/gpt2.h"

namespace tessera::gpt2 {
namespace {

std::vector<models::GgufValue> values(const models::ModelConfig& config) {
  const auto& c = config.as<Config>();
  return {{"context_length", c.max_seq_len},   {"embedding_length", c.dim},
          {"block_count", c.n_layers},         {"feed_forward_length", c.ffn_dim()},
          {"attention.head_count", c.n_heads}, {"attention.layer_norm_epsilon", c.norm_eps}};
}

}  // namespace

const models::Gguf& gguf() {
  static const models::Gguf names{
      .architecture = "gpt2",
      .tensors = {{"token_embd.weight", {"tok_embeddings.weight"}},
                  {"position_embd.weight", {"pos_embeddings.weight"}},
                  {"blk.#.attn_qkv.weight",
                   {"layers.#.attention.wq.weight", "layers.#.attention.wk.weight",
                    "layers.#.attention.wv.weight"}},
                  {"blk.#.attn_qkv.bias",
                   {"layers.#.attention.wq.bias", "layers.#.attention.wk.bias",
                    "layers.#.attention.wv.bias"}},
                  {"blk.#.attn_output.weight", {"layers.#.attention.wo.weight"}},
                  {"blk.#.attn_output.bias", {"layers.#.attention.wo.bias"}},
                  {"blk.#.ffn_up.weight", {"layers.#.feed_forward.w1.weight"}},
                  {"blk.#.ffn_up.bias", {"layers.#.feed_forward.w1.bias"}},
                  {"blk.#.ffn_down.weight", {"layers.#.feed_forward.w2.weight"}},
                  {"blk.#.ffn_down.bias", {"layers.#.feed_forward.w2.bias"}},
                  {"blk.#.attn_norm.weight", {"layers.#.attention_norm.weight"}},
                  {"blk.#.attn_norm.bias", {"layers.#.attention_norm.bias"}},
                  {"blk.#.ffn_norm.weight", {"layers.#.ffn_norm.weight"}},
                  {"blk.#.ffn_norm.bias", {"layers.#.ffn_norm.bias"}},
                  {"output.weight", {"output.weight"}},
                  {"output_norm.weight", {"norm.weight"}},
                  {"output_norm.bias", {"norm.bias"}}},
      .in_f32 = {"position_embd.weight"},
      .values = values};
  return names;
}

}  // namespace tessera::gpt2
