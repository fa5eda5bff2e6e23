// SPDX-License-Identifier: Apache-2.0
// Llama under the names of llama.cpp, which turns adjacent pairs of a head, as we do. Llama 3.1's
// scaling is a table of factors that frequencies are divided by.
#include "tessera/models/gguf.h"

#include "tessera/models/llama3/llama3.h"

namespace tessera::llama3 {
namespace {

std::vector<models::GgufValue> values(const models::ModelConfig& config) {
  const auto& c = config.as<Config>();
  return {{"context_length", c.max_seq_len},
          {"embedding_length", c.dim},
          {"block_count", c.n_layers},
          {"feed_forward_length", c.ffn_dim},
          {"attention.head_count", c.n_heads},
          {"attention.head_count_kv", c.n_kv_heads},
          {"attention.layer_norm_rms_epsilon", c.norm_eps},
          {"rope.freq_base", c.rope_theta},
          {"rope.dimension_count", c.head_dim()},
          {"vocab_size", c.vocab_size}};
}

std::vector<models::GgufTable> tables(const models::ModelConfig& config) {
  const auto& c = config.as<Config>();
  if (c.rope_scaling.kind == RopeScaling::Kind::none) return {};
  if (c.rope_scaling.kind != RopeScaling::Kind::llama3)
    fail<ValueError>("gguf", "this rope_scaling cannot be expressed: expected none or llama");
  const auto plain = rope_frequencies(c.head_dim(), c.rope_theta),
             scaled = rope_frequencies(c.head_dim(), c.rope_theta, c.rope_scaling);
  models::GgufTable factors{"rope_freqs.weight", {}};
  for (size_t i = 0; i < plain.size(); ++i)
    factors.values.push_back(static_cast<float>(plain[i] / scaled[i]));
  return {std::move(factors)};
}

}  // namespace

const models::Gguf& gguf() {
  static const models::Gguf names{
      .architecture = "llama",
      .tensors = {{"token_embd.weight", {"tok_embeddings.weight"}},
                  {"blk.#.attn_q.weight", {"layers.#.attention.wq.weight"}},
                  {"blk.#.attn_k.weight", {"layers.#.attention.wk.weight"}},
                  {"blk.#.attn_v.weight", {"layers.#.attention.wv.weight"}},
                  {"blk.#.attn_output.weight", {"layers.#.attention.wo.weight"}},
                  {"blk.#.ffn_gate.weight", {"layers.#.feed_forward.w1.weight"}},
                  {"blk.#.ffn_down.weight", {"layers.#.feed_forward.w2.weight"}},
                  {"blk.#.ffn_up.weight", {"layers.#.feed_forward.w3.weight"}},
                  {"blk.#.attn_norm.weight", {"layers.#.attention_norm.weight"}},
                  {"blk.#.ffn_norm.weight", {"layers.#.ffn_norm.weight"}},
                  {"output_norm.weight", {"norm.weight"}},
                  {"output.weight", {"output.weight"}}},
      .values = values,
      .tables = tables};
  return names;
}

}  // namespace tessera::llama3
