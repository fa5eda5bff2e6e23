// SPDX-License-Identifier: Apache-2.0
// Dense Qwen 3 under the names of llama.cpp, which turns the halves of a head, as we do.
#include "tessera/models/gguf.h"

#include "tessera/models/qwen3/qwen3.h"

namespace tessera::qwen3 {
namespace {

std::vector<models::GgufValue> values(const models::ModelConfig& config) {
  const auto& c = config.as<Config>();
  if (c.rope_scaling.kind != RopeScaling::Kind::none)
    fail<ValueError>("gguf", "this rope_scaling cannot be expressed: expected none");
  return {{"context_length", c.max_seq_len},
          {"embedding_length", c.dim},
          {"block_count", c.n_layers},
          {"feed_forward_length", c.ffn_dim},
          {"attention.head_count", c.n_heads},
          {"attention.head_count_kv", c.n_kv_heads},
          {"attention.key_length", c.head_dim},
          {"attention.value_length", c.head_dim},
          {"attention.layer_norm_rms_epsilon", c.norm_eps},
          {"rope.freq_base", c.rope_theta}};
}

}  // namespace

const models::Gguf& gguf() {
  static const models::Gguf names{
      .architecture = "qwen3",
      .tensors = {{"token_embd.weight", {"tok_embeddings.weight"}},
                  {"blk.#.attn_q.weight", {"layers.#.attention.wq.weight"}},
                  {"blk.#.attn_k.weight", {"layers.#.attention.wk.weight"}},
                  {"blk.#.attn_v.weight", {"layers.#.attention.wv.weight"}},
                  {"blk.#.attn_output.weight", {"layers.#.attention.wo.weight"}},
                  {"blk.#.attn_q_norm.weight", {"layers.#.attention.q_norm.weight"}},
                  {"blk.#.attn_k_norm.weight", {"layers.#.attention.k_norm.weight"}},
                  {"blk.#.ffn_gate.weight", {"layers.#.feed_forward.w1.weight"}},
                  {"blk.#.ffn_down.weight", {"layers.#.feed_forward.w2.weight"}},
                  {"blk.#.ffn_up.weight", {"layers.#.feed_forward.w3.weight"}},
                  {"blk.#.attn_norm.weight", {"layers.#.attention_norm.weight"}},
                  {"blk.#.ffn_norm.weight", {"layers.#.ffn_norm.weight"}},
                  {"output_norm.weight", {"norm.weight"}},
                  {"output.weight", {"output.weight"}}},
      .values = values};
  return names;
}

}  // namespace tessera::qwen3
