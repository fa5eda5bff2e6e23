// SPDX-License-Identifier: Apache-2.0
// Llama on one page: RMS norms, RoPE, grouped-query attention and SwiGLU, built from layers and ops
// in 45 lines. It learns a text (or a given file) byte by byte, then generates text from its first
// letters.
#include <iostream>
#include <tessera/tessera.h>
using namespace tessera;

constexpr int64_t kDim = 64, kHeadDim = 16, kKvDim = 32, kHidden = 192, kLayers = 2, kBytes = 256;
constexpr int64_t kRows = 2, kLength = 128, kBatch = kRows * kLength, kSteps = 300;
constexpr std::string_view kText =
    R"(A tile is small, and cut to fit, and says but little on its own;
yet row by row the maker sets a shape that no one tile has shown.
The first is laid against a line, the next is laid against the first,
and where a corner will not close the hand goes back and is not cursed.
So learns a net: it guesses wrong, is told how far, and moves a hair;
a thousand little moves like that, and what it could not say is there.
)";

struct Block final : nn::Layer<Block> {
  nn::RmsNorm attention_norm{kDim}, ffn_norm{kDim};
  nn::Linear wq{kDim, kDim}, wk{kDim, kKvDim}, wv{kDim, kKvDim}, wo{kDim, kDim};
  nn::Linear w1{kDim, kHidden}, w2{kHidden, kDim}, w3{kDim, kHidden};

  void visit(nn::Visitor& v) override {
    v.child("attention_norm", attention_norm), v.child("ffn_norm", ffn_norm);
    v.child("wq", wq), v.child("wk", wk), v.child("wv", wv), v.child("wo", wo);
    v.child("w1", w1), v.child("w2", w2), v.child("w3", w3);
  }
  Tensor forward(const Tensor& x, const Tensor& cos, const Tensor& sin) const {
    const auto heads = [](const Tensor& y) { return unflatten(y, 2, {-1, kHeadDim}); };
    const Tensor in = attention_norm(x);               // (B, T, dim)
    const Tensor q = rope(heads(wq(in)), cos, sin);    // (B, T, 4, D)
    const Tensor k = rope(heads(wk(in)), cos, sin);    // (B, T, 2, D): two queries share a key
    const Tensor seen = scaled_dot_product_attention(  // (B, T, 4, D)
        q, k, heads(wv(in)), {.mask = AttentionMask::causal(), .heads_inner = true});
    const Tensor y = x + wo(flatten(seen, 2)), z = ffn_norm(y);  // (B, T, dim)
    return y + w2(swiglu(w1(z), w3(z)));
  }
};

struct Llama final : nn::Layer<Llama> {
  nn::Embedding tok_embeddings{kBytes, kDim};
  nn::ModuleList<Block> layers{kLayers};
  nn::RmsNorm norm{kDim};
  nn::Linear output{kDim, kBytes};

  void visit(nn::Visitor& v) override {
    v.child("tok_embeddings", tok_embeddings), v.children("layers", layers);
    v.child("norm", norm), v.child("output", output);
  }
  Tensor forward(const Tensor& tokens) const {  // (B, T) -> (B, T, 256)
    const auto [cos, sin] = rope_tables(tokens.size(1), kHeadDim, 10000);
    Tensor x = tok_embeddings(tokens);  // (B, T, dim)
    for (const Block& layer : layers) x = layer(x, cos, sin);
    return output(norm(x));
  }
};

int main(int argc, char** argv) {
  const std::string text = argc > 1 ? io::read_file(argv[1]) : std::string(kText);
  const Session session({.threads = 1});  // so small a model shares out badly
  const Tensor ids = from_span(train::ByteTokenizer::encode(text));  // (n)
  Llama model;
  nn::initialize(model, /*seed=*/1);
  optim::AdamW optimizer(nn::parameters(model), {.lr = 3e-3});
  double last = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    const int64_t at = step * 97 % std::max<int64_t>(1, ids.numel() - kBatch - 1);
    const Tensor window = ids[slice(at, at + kBatch + 1)];
    const Tensor tokens = reshape(window[slice(0, -1)], {kRows, kLength});  // (B, T)
    const Tensor next = reshape(window[slice(1)], {kRows, kLength});        // (B, T)
    const Tensor loss = cross_entropy(model(tokens), next).sum / kBatch;
    backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    last = loss.item();
    if (step % 50 == 49) std::cout << "step " << step + 1 << "  loss " << last << '\n';
  }

  const NoGrad quiet;
  Tensor line = ids[slice(0, 8)];  // (n)
  while (line.numel() < kLength) {
    const Tensor likeliest = argmax(model(unsqueeze(line, 0)), 2)[0];  // (n)
    line = cat({line, likeliest[slice(-1)]}, 0);
  }
  std::cout << train::ByteTokenizer::decode({line.data<int64_t>(), kLength}) << '\n';
  return last < (argc > 1 ? 3 : 1) ? 0 : 1;  // by chance it is log 256 = 5.5
}
