// SPDX-License-Identifier: Apache-2.0
// For tests: a model family in a few lines, with an auxiliary loss, a figure of its state and
// something to do before a step.
#pragma once

#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"
#include "tessera/models/decoder.h"
#include "tessera/models/family.h"

namespace tessera::test {

class Toy : public models::Decoder {
 public:
  struct Config {
    int64_t vocab_size = 11, max_seq_len = 8, dim = 4;
    DType dtype = DType::f32;
    void fields(config::Fields& f) {
      f.add("dim", dim, "hidden size", {.min = 1});
      f.add("vocab_size", vocab_size, "vocabulary size", {.min = 1});
    }
    [[nodiscard]] std::vector<std::string> conflicts() const { return {}; }
  };
  explicit Toy(const Config& c)
      : Decoder({.family = "toy", .vocab_size = c.vocab_size, .max_seq_len = c.max_seq_len}),
        table(c.vocab_size, c.dim, nn::Init::normal(1), c.dtype) {}
  void visit(nn::Visitor& v) override { v.child("table", table); }
  std::vector<nn::Module*> units() override { return {}; }
  [[nodiscard]] models::Loss loss(const Tensor& tokens, const Tensor& targets,
                                  const models::Metadata& m,
                                  const CrossEntropyOptions& o) const override {
    models::Loss l = Decoder::loss(tokens, targets, m, o);
    l.auxiliary.push_back({"size", run(&Toy::size_of, tokens)});
    l.load = stack({stack({l.count, l.count})});  // (1, 2): one expert that takes all
    return l;
  }
  [[nodiscard]] std::vector<models::NamedValue> statistics(const Tensor& load) const override {
    return {{"steps", tensor(steps)}, {"load", select(select(load, 0, 0), 0, 1)}};
  }
  void before_optimizer_step(const Tensor&, const Tensor&) override { ++steps; }

  nn::Embedding table;
  double steps = 0;

 private:
  [[nodiscard]] models::Metadata plain_metadata(int64_t, int64_t) const override {
    return {std::vector<nn::AttentionMetadata>(1)};
  }
  [[nodiscard]] Tensor size_of(const Tensor& tokens) const {
    const Tensor x = table(tokens);
    return sum(x * x);
  }
  [[nodiscard]] Tensor embed(const Tensor& tokens, const models::Metadata&) const override {
    return table(tokens);
  }
  [[nodiscard]] models::LayerResult layer(size_t, const Tensor& x, const models::Metadata&,
                                          nn::KvCache*) const override {
    return {x};
  }
  [[nodiscard]] Tensor finish(const Tensor& x) const override { return x; }
  [[nodiscard]] const nn::Embedding* embedding() const override { return &table; }
  [[nodiscard]] Head head() const override { return {&table, table.weight}; }
};

/// Sizes `small` and `wide`.
inline models::Family toy_family() {
  const std::vector<std::pair<std::string, Toy::Config>> sizes{{"small", {}}, {"wide", {.dim = 9}}};
  return models::family<Toy>("toy", "one table", sizes);
}

}  // namespace tessera::test
