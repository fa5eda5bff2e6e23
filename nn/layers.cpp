// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/layers.h"

#include "tessera/kernels/dropout/dropout.h"
#include "tessera/kernels/embedding/embedding.h"
#include "tessera/kernels/layer_norm/layer_norm.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/rms_norm/rms_norm.h"
#include "tessera/kernels/swiglu/swiglu.h"

namespace tessera::nn {

Linear::Linear(int64_t in, int64_t out, Init init, DType dtype, bool with_bias)
    : weight(parameter({out, in}, dtype)), init_(init) {
  if (with_bias) bias = parameter({out}, dtype);
}
void Linear::visit(Visitor& visitor) {
  visitor.parameter("weight", weight, init_);
  if (bias.defined()) visitor.parameter("bias", bias, Init::constant(0));
}
std::string Linear::extra_repr() const {
  return concat("in_features=", weight.size(1), ", out_features=", weight.size(0),
                ", bias=", bias.defined() ? "True" : "False");
}
Tensor Linear::forward(const Tensor& x) const {
  const Tensor y = linear(x, weight);  // (..., out)
  return bias.defined() ? y + bias : y;
}

Embedding::Embedding(int64_t vocabulary, int64_t dim, Init init, DType dtype)
    : weight(parameter({vocabulary, dim}, dtype)), init_(init) {}
void Embedding::visit(Visitor& visitor) { visitor.parameter("weight", weight, init_); }
std::string Embedding::extra_repr() const { return concat(weight.size(0), ", ", weight.size(1)); }
Tensor Embedding::forward(const Tensor& ids) const { return embedding(weight, ids); }

namespace {
std::string norm_text(int64_t dim, double eps) { return concat('(', dim, ",), eps=", eps); }

Tensor applied(Nonlinearity f, const Tensor& x) {
  switch (f) {
    case Nonlinearity::silu: return silu(x);
    case Nonlinearity::gelu: return gelu(x);
    case Nonlinearity::gelu_tanh: return gelu(x, true);
    case Nonlinearity::relu_squared: break;
  }
  const Tensor positive = relu(x);
  return positive * positive;
}
}  // namespace

RmsNorm::RmsNorm(const Config& c)
    : weight(parameter({c.dim}, c.dtype)), eps_(c.eps), weight_offset_(c.weight_offset) {}
RmsNorm::RmsNorm(int64_t dim, double eps, DType dtype)
    : RmsNorm(Config{.dim = dim, .eps = eps, .dtype = dtype}) {}
void RmsNorm::visit(Visitor& visitor) {
  visitor.parameter("weight", weight, Init::constant(1 - weight_offset_));
}
std::string RmsNorm::extra_repr() const {
  const std::string text = norm_text(weight.size(0), eps_);
  return weight_offset_ == 0 ? text : concat(text, ", weight_offset=", weight_offset_);
}
Tensor RmsNorm::forward(const Tensor& x) const { return rms_norm(x, weight, eps_, weight_offset_); }

LayerNorm::LayerNorm(const Config& c) : dim_(c.dim), eps_(c.eps) {
  if (c.weight) weight = parameter({dim_}, c.dtype);
  if (c.bias) bias = parameter({dim_}, c.dtype);
}
LayerNorm::LayerNorm(int64_t dim, double eps, DType dtype)
    : LayerNorm(Config{.dim = dim, .eps = eps, .dtype = dtype}) {}
void LayerNorm::visit(Visitor& visitor) {
  if (weight.defined()) visitor.parameter("weight", weight, Init::constant(1));
  if (bias.defined()) visitor.parameter("bias", bias, Init::constant(0));
}
std::string LayerNorm::extra_repr() const {
  return concat(norm_text(dim_, eps_), weight.defined() ? "" : ", weight=False",
                bias.defined() ? "" : ", bias=False");
}
Tensor LayerNorm::forward(const Tensor& x) const {
  if (x.rank() < 1 || x.size(-1) != dim_)
    fail<ShapeError>("layer_norm", "x must be (..., ", dim_, "): given ", x.meta());
  return layer_norm(x, weight, bias, eps_);
}

Dropout::Dropout(double p) : p_(p) {
  if (!(p >= 0 && p < 1)) fail<ValueError>("dropout", "p ", p, " is not in [0, 1)");
}
std::string Dropout::extra_repr() const { return concat("p=", p_); }
Tensor Dropout::forward(const Tensor& x) const { return dropout(x, p_, is_training()); }

FeedForward::FeedForward(const Config& c)
    : w1(c.dim, c.hidden, c.gate, c.dtype, c.bias),
      w2(c.hidden, c.dim, c.output, c.dtype, c.bias),
      w3(c.dim, c.hidden, c.output, c.dtype, c.bias),
      nonlinearity_(c.nonlinearity) {}
void FeedForward::visit(Visitor& visitor) {
  visitor.child("w1", w1);
  visitor.child("w2", w2);
  visitor.child("w3", w3);
}
Tensor FeedForward::forward(const Tensor& x) const {
  const Tensor gate = w1(x), up = w3(x);
  return w2(nonlinearity_ == Nonlinearity::silu ? swiglu(gate, up)
                                                : applied(nonlinearity_, gate) * up);
}

Mlp::Mlp(const Config& c)
    : w1(c.dim, c.hidden, c.input, c.dtype, c.bias),
      w2(c.hidden, c.dim, c.output, c.dtype, c.bias),
      nonlinearity_(c.nonlinearity) {}
void Mlp::visit(Visitor& visitor) {
  visitor.child("w1", w1);
  visitor.child("w2", w2);
}
Tensor Mlp::forward(const Tensor& x) const { return w2(applied(nonlinearity_, w1(x))); }

}  // namespace tessera::nn
