// SPDX-License-Identifier: Apache-2.0
// Your own model family: the next token depends only on the last token. LanguageModel requires a
// Config with fields and the members of a decoder; loss, checkpoints, generation and the command
// line come with it.
#pragma once

#include "tessera/models/decoder.h"
#include "tessera/models/family.h"

namespace own {

class Bigram final : public tessera::models::Decoder {
 public:
  struct Config {
    int64_t dim = 32, vocab_size = 258, max_seq_len = 4096;
    tessera::DType dtype = tessera::DType::f32;
    void fields(tessera::config::Fields& f) {
      f.add("dim", dim, "hidden size", {.min = 1});
      f.add("vocab_size", vocab_size, "vocabulary size", {.min = 1});
    }
    [[nodiscard]] std::vector<std::string> conflicts() const { return {}; }
  };
  explicit Bigram(const Config& c)
      : Decoder({.family = "bigram", .vocab_size = c.vocab_size, .max_seq_len = c.max_seq_len}),
        table(c.vocab_size, c.dim, tessera::nn::Init::normal(1), c.dtype),
        output(c.dim, c.vocab_size, tessera::nn::Init::normal(0.02), c.dtype) {}
  void visit(tessera::nn::Visitor& v) override {
    v.child("table", table);
    v.child("output", output);
  }
  std::vector<tessera::nn::Module*> units() override { return {}; }

 private:
  [[nodiscard]] tessera::models::Metadata plain_metadata(int64_t, int64_t) const override {
    return {std::vector<tessera::nn::AttentionMetadata>(1)};
  }
  [[nodiscard]] tessera::Tensor embed(const tessera::Tensor& tokens,
                                      const tessera::models::Metadata&) const override {
    return table(tokens);  // (B, T, dim)
  }
  [[nodiscard]] tessera::models::LayerResult layer(size_t, const tessera::Tensor& x,
                                                   const tessera::models::Metadata&,
                                                   tessera::nn::KvCache*) const override {
    return {x};
  }
  [[nodiscard]] tessera::Tensor finish(const tessera::Tensor& x) const override { return x; }
  [[nodiscard]] const tessera::nn::Embedding* embedding() const override { return &table; }
  [[nodiscard]] Head head() const override { return {&output, output.weight}; }

  tessera::nn::Embedding table;
  tessera::nn::Linear output;
};

}  // namespace own
