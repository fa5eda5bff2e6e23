// SPDX-License-Identifier: Apache-2.0
// A family with attention: blocks whose attention and feed-forward read the same normed input and
// are added at once. A block takes the attention metadata of the batch (positions, mask) and the
// cache of generation, and passes them on; the family says how they are made.
#pragma once

#include "tessera/models/decoder.h"
#include "tessera/models/family.h"
#include "tessera/nn/attention.h"

namespace own {

class Block final : public tessera::nn::Layer<Block> {
 public:
  Block(int64_t dim, int64_t heads, tessera::DType dtype)
      : attention({.dim = dim,
                   .n_heads = heads,
                   .n_kv_heads = heads,
                   .head_dim = dim / heads,
                   .dtype = dtype}),
        feed_forward({.dim = dim, .hidden = 4 * dim, .dtype = dtype}),
        norm(dim, 1e-5, dtype) {}
  void visit(tessera::nn::Visitor& v) override {
    v.child("attention", attention);
    v.child("feed_forward", feed_forward);
    v.child("norm", norm);
  }
  tessera::nn::Attention attention;
  tessera::nn::Mlp feed_forward;
  tessera::nn::RmsNorm norm;

 private:
  friend class tessera::nn::Layer<Block>;
  [[nodiscard]] tessera::Tensor forward(const tessera::Tensor& x,
                                        const tessera::nn::AttentionMetadata& metadata,
                                        tessera::nn::KvCache* cache) const {
    const tessera::Tensor y = norm(x);
    return x + attention(y, metadata, cache) + feed_forward(y);  // (B, T, dim)
  }
};

class ParallelBlocks final : public tessera::models::UniformDecoder<Block, tessera::nn::RmsNorm> {
 public:
  struct Config {
    int64_t dim = 64, n_layers = 2, n_heads = 4, vocab_size = 258, max_seq_len = 1024;
    tessera::DType dtype = tessera::DType::f32;
    void fields(tessera::config::Fields& f) {
      f.add("dim", dim, "hidden size", {.min = 1});
      f.add("n_layers", n_layers, "number of layers", {.min = 1});
      f.add("n_heads", n_heads, "number of attention heads", {.min = 1});
      f.add("vocab_size", vocab_size, "vocabulary size", {.min = 1});
    }
    [[nodiscard]] std::vector<std::string> conflicts() const {
      if (dim % (2 * n_heads) == 0) return {};
      return {"[--model.dim] is not a multiple of twice --model.n_heads: RoPE turns pairs"};
    }
  };
  explicit ParallelBlocks(const Config& c)
      : UniformDecoder({.family = "parallel_blocks",
                        .vocab_size = tessera::models::checked(c).vocab_size,
                        .max_seq_len = c.max_seq_len,
                        .n_layers = c.n_layers,
                        .attention_dim = c.dim}),
        head_dim_(c.dim / c.n_heads) {
    tok_embeddings.emplace(c.vocab_size, c.dim, tessera::nn::Init::normal(1), c.dtype);
    for (int64_t i = 0; i < c.n_layers; ++i) layers.emplace_back(c.dim, c.n_heads, c.dtype);
    norm.emplace(c.dim, 1e-5, c.dtype);
    output.emplace(c.dim, c.vocab_size, tessera::nn::Init::truncated_normal(0.02), c.dtype);
  }
  // In the order of forward. Members that may be absent let a stage of a pipeline keep some.
  void visit(tessera::nn::Visitor& v) override {
    v.child("tok_embeddings", tok_embeddings);
    v.children("layers", layers);
    v.child("norm", norm);
    v.child("output", output);
  }
  std::optional<tessera::nn::Linear> output;

 private:
  // On the CPU and plain, whatever the model lies on: the base brings the tables to it.
  [[nodiscard]] tessera::models::Metadata plain_metadata(int64_t length,
                                                         int64_t start) const override {
    return {{tessera::nn::causal_metadata(length, head_dim_, /*theta=*/1e4, start)}};
  }
  [[nodiscard]] tessera::Tensor embed(const tessera::Tensor& tokens,
                                      const tessera::models::Metadata&) const override {
    return (*tok_embeddings)(tokens);  // (B, T, dim)
  }
  [[nodiscard]] Head head() const override {
    return output ? Head{&*output, output->weight} : Head{};
  }
  int64_t head_dim_;
};

}  // namespace own
