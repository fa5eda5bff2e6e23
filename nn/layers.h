// SPDX-License-Identifier: Apache-2.0
// The layers that transformers are made of: linear, embedding, normalisation and feed-forward,
// gated or not. None of them merges batch and sequence dims, so that a cut sequence stays a plain
// shard. A layer is called like a function of its input: `wo(x)` is `wo.forward(x)`.
#pragma once

#include "tessera/nn/module.h"

namespace tessera::nn {

/// y = x W^T, plus a bias if asked for. x (..., in) -> (..., out); weight (out, in), bias (out),
/// zeros at first.
class TESSERA_API Linear final : public Module {
 public:
  Linear(int64_t in, int64_t out, Init init = Init::truncated_normal(0.02),
         DType dtype = DType::f32, bool with_bias = false);
  void visit(Visitor& visitor) override;
  [[nodiscard]] Tensor forward(const Tensor& x) const;
  [[nodiscard]] Tensor operator()(const Tensor& x) const { return forward(x); }

  Tensor weight;  // (out, in)
  Tensor bias;    // (out), or undefined

 private:
  Init init_;
};

/// Rows of a table. ids (...) i64 -> (..., dim); weight (vocabulary, dim).
class TESSERA_API Embedding final : public Module {
 public:
  Embedding(int64_t vocabulary, int64_t dim, Init init = Init::normal(1), DType dtype = DType::f32);
  void visit(Visitor& visitor) override;
  [[nodiscard]] Tensor forward(const Tensor& ids) const;
  [[nodiscard]] Tensor operator()(const Tensor& ids) const { return forward(ids); }

  Tensor weight;  // (vocabulary, dim)

 private:
  Init init_;
};

/// x / rms(x) * weight over the last dim. x (..., dim) -> (..., dim); weight (dim), ones at first.
class TESSERA_API RmsNorm final : public Module {
 public:
  explicit RmsNorm(int64_t dim, double eps = 1e-5, DType dtype = DType::f32);
  void visit(Visitor& visitor) override;
  [[nodiscard]] Tensor forward(const Tensor& x) const;
  [[nodiscard]] Tensor operator()(const Tensor& x) const { return forward(x); }

  Tensor weight;  // (dim)

 private:
  double eps_;
};

/// (x - mean(x)) / deviation(x) * weight + bias over the last dim. x (..., dim) -> (..., dim);
/// weight (dim), ones at first, bias (dim), zeros at first.
class TESSERA_API LayerNorm final : public Module {
 public:
  explicit LayerNorm(int64_t dim, double eps = 1e-5, DType dtype = DType::f32);
  void visit(Visitor& visitor) override;
  [[nodiscard]] Tensor forward(const Tensor& x) const;
  [[nodiscard]] Tensor operator()(const Tensor& x) const { return forward(x); }

  Tensor weight, bias;  // (dim)

 private:
  double eps_;
};

/// Each element is zero with probability p, else x / (1 - p), while gradients are recorded; x
/// itself under NoGrad. ValueError for p outside [0, 1).
class TESSERA_API Dropout final : public Module {
 public:
  explicit Dropout(double p);
  void visit(Visitor&) override {}
  [[nodiscard]] Tensor forward(const Tensor& x) const;
  [[nodiscard]] Tensor operator()(const Tensor& x) const { return forward(x); }

 private:
  double p_;
};

/// w2(silu(w1 x) * w3 x) (Shazeer, 2020). x (..., dim) -> (..., dim).
class TESSERA_API FeedForward final : public Module {
 public:
  struct Config {
    int64_t dim = 0, hidden = 0;
    Init gate = Init::truncated_normal(0.02);  ///< of w1
    Init output = gate;                        ///< of w2 and w3
    DType dtype = DType::f32;
  };
  explicit FeedForward(const Config& config);
  void visit(Visitor& visitor) override;
  [[nodiscard]] Tensor forward(const Tensor& x) const;
  [[nodiscard]] Tensor operator()(const Tensor& x) const { return forward(x); }

  Linear w1, w2, w3;
};

/// w2(gelu(w1 x)), the feed-forward of the first transformers. x (..., dim) -> (..., dim).
class TESSERA_API Mlp final : public Module {
 public:
  struct Config {
    int64_t dim = 0, hidden = 0;
    Init input = Init::truncated_normal(0.02);  ///< of w1
    Init output = input;                        ///< of w2
    bool bias = true;                           ///< of w1 and w2
    bool tanh_approximation = false;            ///< of gelu, as GPT-2
    DType dtype = DType::f32;
  };
  explicit Mlp(const Config& config);
  void visit(Visitor& visitor) override;
  [[nodiscard]] Tensor forward(const Tensor& x) const;
  [[nodiscard]] Tensor operator()(const Tensor& x) const { return forward(x); }

  Linear w1, w2;

 private:
  bool tanh_approximation_;
};

}  // namespace tessera::nn
