// SPDX-License-Identifier: Apache-2.0
// The layers of transformers: linear, embedding, normalisation, activations and feed-forward, gated
// or not. None of them merges batch and sequence dims, so that a sharded sequence stays a plain
// shard. A layer is called like a function of its input: `wo(x)`.
#pragma once

#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/module.h"

namespace tessera::nn {

/// y = x W^T + bias (optional). x (..., in) -> (..., out); weight (out, in), bias (out), initially
/// zeros.
class TESSERA_API Linear final : public Layer<Linear> {
 public:
  Linear(int64_t in, int64_t out, Init init = Init::truncated_normal(0.02),
         DType dtype = DType::f32, bool with_bias = false);
  void visit(Visitor& visitor) override;
  [[nodiscard]] std::string extra_repr() const override;

  Tensor weight;  // (out, in)
  Tensor bias;    // (out), or undefined

 private:
  friend class Layer<Linear>;
  [[nodiscard]] Tensor forward(const Tensor& x) const;
  Init init_;
};

/// Rows of the weight. ids (...) i64 -> (..., dim); weight (vocabulary, dim).
class TESSERA_API Embedding final : public Layer<Embedding> {
 public:
  Embedding(int64_t vocabulary, int64_t dim, Init init = Init::normal(1), DType dtype = DType::f32);
  void visit(Visitor& visitor) override;
  [[nodiscard]] std::string extra_repr() const override;

  Tensor weight;  // (vocabulary, dim)

 private:
  friend class Layer<Embedding>;
  [[nodiscard]] Tensor forward(const Tensor& ids) const;
  Init init_;
};

/// x / rms(x) * (weight_offset + weight) over the last dim. x (..., dim) -> (..., dim); weight
/// (dim), initially such that the factor is one.
class TESSERA_API RmsNorm final : public Layer<RmsNorm> {
 public:
  struct Config {
    int64_t dim = 0;
    double eps = 1e-5;
    double weight_offset = 0;  ///< 1 in Gemma, whose weights begin at zero
    DType dtype = DType::f32;
  };
  explicit RmsNorm(const Config& config);
  explicit RmsNorm(int64_t dim, double eps = 1e-5, DType dtype = DType::f32);
  void visit(Visitor& visitor) override;
  [[nodiscard]] std::string extra_repr() const override;

  Tensor weight;  // (dim)

 private:
  friend class Layer<RmsNorm>;
  [[nodiscard]] Tensor forward(const Tensor& x) const;
  double eps_, weight_offset_;
};

/// (x - mean(x)) / deviation(x) * weight + bias over the last dim. x (..., dim) -> (..., dim);
/// weight (dim), initially ones; bias (dim), initially zeros. Either may be left out. ShapeError
/// where x has another last dim.
class TESSERA_API LayerNorm final : public Layer<LayerNorm> {
 public:
  struct Config {
    int64_t dim = 0;
    double eps = 1e-5;
    bool weight = true, bias = true;  ///< without a bias in Cohere, with neither in OLMo
    DType dtype = DType::f32;
  };
  explicit LayerNorm(const Config& config);
  explicit LayerNorm(int64_t dim, double eps = 1e-5, DType dtype = DType::f32);
  void visit(Visitor& visitor) override;
  [[nodiscard]] std::string extra_repr() const override;

  Tensor weight, bias;  // (dim), or undefined

 private:
  friend class Layer<LayerNorm>;
  [[nodiscard]] Tensor forward(const Tensor& x) const;
  int64_t dim_;
  double eps_;
};

/// Each element is zero with probability p, else x / (1 - p), in training mode; x itself after
/// eval(). ValueError for p outside [0, 1).
class TESSERA_API Dropout final : public Layer<Dropout> {
 public:
  explicit Dropout(double p);
  void visit(Visitor&) override {}
  [[nodiscard]] std::string extra_repr() const override;

 private:
  friend class Layer<Dropout>;
  [[nodiscard]] Tensor forward(const Tensor& x) const;
  double p_;
};

/// An activation as a module, for a Sequential.
template <Tensor (*function)(const Tensor&)> class Activation : public Layer<Activation<function>> {
 public:
  void visit(Visitor&) override {}

 private:
  friend class Layer<Activation>;
  [[nodiscard]] Tensor forward(const Tensor& x) const { return function(x); }
};
class TESSERA_API Relu final : public Activation<relu> {};
class TESSERA_API Sigmoid final : public Activation<sigmoid> {};
class TESSERA_API Silu final : public Activation<silu> {};
class TESSERA_API Tanh final : public Activation<tanh> {};
/// x times the standard normal CDF of x; with `tanh_approximation` as GPT-2 computes it.
class TESSERA_API Gelu final : public Layer<Gelu> {
 public:
  explicit Gelu(bool tanh_approximation = false) : tanh_approximation_(tanh_approximation) {}
  void visit(Visitor&) override {}
  [[nodiscard]] std::string extra_repr() const override {
    return tanh_approximation_ ? "approximate=tanh" : "approximate=none";
  }

 private:
  friend class Layer<Gelu>;
  [[nodiscard]] Tensor forward(const Tensor& x) const { return gelu(x, tanh_approximation_); }
  bool tanh_approximation_;
};

/// The nonlinear function of a feed-forward layer.
enum class Nonlinearity : uint8_t {
  silu,
  gelu,
  gelu_tanh,    ///< its tanh approximation, as GPT-2 and Gemma
  relu_squared  ///< relu(x)^2 (So et al., Primer, 2021)
};

/// w2(f(w1 x) * w3 x) (Shazeer, 2020), where f is silu unless said. x (..., dim) -> (..., dim).
class TESSERA_API FeedForward final : public Layer<FeedForward> {
 public:
  struct Config {
    int64_t dim = 0, hidden = 0;
    Init gate = Init::truncated_normal(0.02);  ///< of w1
    Init output = gate;                        ///< of w2 and w3
    DType dtype = DType::f32;
    bool bias = false;  ///< of w1, w2 and w3
    Nonlinearity nonlinearity = Nonlinearity::silu;
  };
  explicit FeedForward(const Config& config);
  void visit(Visitor& visitor) override;

  Linear w1, w2, w3;

 private:
  friend class Layer<FeedForward>;
  [[nodiscard]] Tensor forward(const Tensor& x) const;
  Nonlinearity nonlinearity_;
};

/// w2(f(w1 x)), where f is gelu unless said. x (..., dim) -> (..., dim).
class TESSERA_API Mlp final : public Layer<Mlp> {
 public:
  struct Config {
    int64_t dim = 0, hidden = 0;
    Init input = Init::truncated_normal(0.02);  ///< of w1
    Init output = input;                        ///< of w2
    bool bias = true;                           ///< of w1 and w2
    Nonlinearity nonlinearity = Nonlinearity::gelu;
    DType dtype = DType::f32;
  };
  explicit Mlp(const Config& config);
  void visit(Visitor& visitor) override;

  Linear w1, w2;

 private:
  friend class Layer<Mlp>;
  [[nodiscard]] Tensor forward(const Tensor& x) const;
  Nonlinearity nonlinearity_;
};

}  // namespace tessera::nn
