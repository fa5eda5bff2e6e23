// SPDX-License-Identifier: Apache-2.0
// Printed module trees: PyTorch's repr, with counts.
#include "tessera/core/context.h"
#include "tessera/nn/attention.h"
#include "tessera/nn/containers.h"

#include <gtest/gtest.h>

namespace tessera::nn {
namespace {

struct Block final : Layer<Block> {
  RmsNorm norm{8};
  FeedForward feed_forward{{.dim = 8, .hidden = 12}};
  Dropout dropout{0.1};
  void visit(Visitor& v) override {
    v.child("norm", norm);
    v.child("feed_forward", feed_forward);
    v.child("dropout", dropout);
  }
};

struct Decoder final : Layer<Decoder> {
  Tensor scale = parameter({3}, DType::bf16);
  Embedding tok_embeddings{16, 8};
  ModuleList<Block> layers{2};
  Linear head{8, 16, Init::normal(1), DType::f32, true};
  void visit(Visitor& v) override {
    v.parameter("scale", scale, Init::constant(1));
    v.child("tok_embeddings", tok_embeddings);
    v.children("layers", layers);
    v.child("head", head);
  }
};

class PrintModule : public testing::Test {
 protected:
  Context context_;
};

TEST_F(PrintModule, ATreeHasNamesTypesSizesAndCounts) {
  EXPECT_EQ(concat(Decoder()),
            "Decoder(  # 867 parameters\n"
            "  scale=bf16[3]\n"
            "  (tok_embeddings): Embedding(16, 8)  # 128 parameters\n"
            "  (layers): ModuleList(  # 592 parameters\n"
            "    (0-1): 2 x Block(  # 296 parameters each\n"
            "      (norm): RmsNorm((8,), eps=1e-05)  # 8 parameters\n"
            "      (feed_forward): FeedForward(  # 288 parameters\n"
            "        (w1): Linear(in_features=8, out_features=12, bias=False)  # 96 parameters\n"
            "        (w2): Linear(in_features=12, out_features=8, bias=False)  # 96 parameters\n"
            "        (w3): Linear(in_features=8, out_features=12, bias=False)  # 96 parameters\n"
            "      )\n"
            "      (dropout): Dropout(p=0.1)\n"
            "    )\n"
            "  )\n"
            "  (head): Linear(in_features=8, out_features=16, bias=True)  # 144 parameters\n"
            ")");
}

TEST_F(PrintModule, ALayerIsOneLine) {
  EXPECT_EQ(concat(Linear(1000, 1234)),
            "Linear(in_features=1000, out_features=1234, bias=False)  # 1,234,000 parameters");
  EXPECT_EQ(concat(LayerNorm(7, 1e-3)), "LayerNorm((7,), eps=0.001)  # 14 parameters");
  EXPECT_EQ(concat(Gelu(true)), "Gelu(approximate=tanh)");
  EXPECT_EQ(concat(Sequential()), "Sequential()");
}

TEST_F(PrintModule, OnlyEqualNeighboursAreFolded) {
  EXPECT_EQ(concat(Sequential(Linear(2, 2), Linear(2, 2), Relu(), Linear(2, 2), Linear(2, 3))),
            "Sequential(  # 18 parameters\n"
            "  (0-1): 2 x Linear(in_features=2, out_features=2, bias=False)  # 4 parameters each\n"
            "  (2): Relu()\n"
            "  (3): Linear(in_features=2, out_features=2, bias=False)  # 4 parameters\n"
            "  (4): Linear(in_features=2, out_features=3, bias=False)  # 6 parameters\n"
            ")");
}

TEST_F(PrintModule, NumbersOfRemovedLayersStayFree) {
  struct Stage final : Layer<Stage> {
    ModuleList<Tanh> layers{5};
    void visit(Visitor& v) override { v.children("layers", layers); }
  } stage;
  stage.layers.remove(1);
  EXPECT_EQ(concat(stage),
            "Stage(\n"
            "  (layers): ModuleList(\n"
            "    (0): Tanh()\n"
            "    (2-4): 3 x Tanh()\n"
            "  )\n"
            ")");
}

TEST_F(PrintModule, AttentionSaysItsHeads) {
  const Attention attention({.dim = 8, .n_heads = 4, .n_kv_heads = 2, .head_dim = 2});
  EXPECT_EQ(concat(attention),
            "Attention(  # 192 parameters\n"
            "  n_heads=4, n_kv_heads=2, head_dim=2\n"
            "  (wq): Linear(in_features=8, out_features=8, bias=False)  # 64 parameters\n"
            "  (wk): Linear(in_features=8, out_features=4, bias=False)  # 32 parameters\n"
            "  (wv): Linear(in_features=8, out_features=4, bias=False)  # 32 parameters\n"
            "  (wo): Linear(in_features=8, out_features=8, bias=False)  # 64 parameters\n"
            ")");
}

template <class T> struct Scale final : Layer<Scale<T>> {
  Tensor by = parameter({2, 1}, dtype_of<T>);
  void visit(Visitor& v) override { v.parameter("by", by, Init::constant(1)); }
};

TEST_F(PrintModule, AModuleThatSaysNothingShowsItsParameters) {
  EXPECT_EQ(concat(Scale<double>()), "Scale(by=f64[2, 1])  # 2 parameters");
}

}  // namespace
}  // namespace tessera::nn
