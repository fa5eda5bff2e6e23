// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/layers.h"

#include "tessera/kernels/embedding/embedding.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/rms_norm/rms_norm.h"
#include "tessera/kernels/swiglu/swiglu.h"

namespace tessera::nn {

Linear::Linear(int64_t in, int64_t out, Init init, DType dtype)
    : weight(parameter({out, in}, dtype)), init_(init) {}
void Linear::visit(Visitor& visitor) { visitor.parameter("weight", weight, init_); }
Tensor Linear::forward(const Tensor& x) const {
  return run(x, [this](const Tensor& in) { return linear(in, weight); });
}

Embedding::Embedding(int64_t vocabulary, int64_t dim, Init init, DType dtype)
    : weight(parameter({vocabulary, dim}, dtype)), init_(init) {}
void Embedding::visit(Visitor& visitor) { visitor.parameter("weight", weight, init_); }
Tensor Embedding::forward(const Tensor& ids) const {
  return run(ids, [this](const Tensor& in) { return embedding(weight, in); });
}

RmsNorm::RmsNorm(int64_t dim, double eps, DType dtype)
    : weight(parameter({dim}, dtype)), eps_(eps) {}
void RmsNorm::visit(Visitor& visitor) { visitor.parameter("weight", weight, Init::constant(1)); }
Tensor RmsNorm::forward(const Tensor& x) const {
  return run(x, [this](const Tensor& in) { return rms_norm(in, weight, eps_); });
}

FeedForward::FeedForward(const Config& c)
    : w1(c.dim, c.hidden, c.gate, c.dtype),
      w2(c.hidden, c.dim, c.output, c.dtype),
      w3(c.dim, c.hidden, c.output, c.dtype) {}
void FeedForward::visit(Visitor& visitor) {
  visitor.child("w1", w1);
  visitor.child("w2", w2);
  visitor.child("w3", w3);
}
Tensor FeedForward::forward(const Tensor& x) const {
  return run(
      x, [this](const Tensor& in) { return w2.forward(swiglu(w1.forward(in), w3.forward(in))); });
}

}  // namespace tessera::nn
