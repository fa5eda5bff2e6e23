// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/layers.h"

#include "tessera/kernels/embedding/embedding.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/rms_norm/rms_norm.h"
#include "tessera/kernels/swiglu/swiglu.h"

namespace tessera::nn {

Linear::Linear(int64_t in, int64_t out, Init init, DType dtype)
    : weight(empty({out, in}, dtype, kMeta)), init_(init) {}
void Linear::visit(Visitor& visitor) { visitor.parameter("weight", weight, init_); }
Tensor Linear::forward(const Tensor& x) const {
  const ModuleScope here = scope();
  return linear(x, weight);
}

Embedding::Embedding(int64_t vocabulary, int64_t dim, Init init, DType dtype)
    : weight(empty({vocabulary, dim}, dtype, kMeta)), init_(init) {}
void Embedding::visit(Visitor& visitor) { visitor.parameter("weight", weight, init_); }
Tensor Embedding::forward(const Tensor& ids) const {
  const ModuleScope here = scope();
  return embedding(weight, ids);
}

RmsNorm::RmsNorm(int64_t dim, double eps, DType dtype)
    : weight(empty({dim}, dtype, kMeta)), eps_(eps) {}
void RmsNorm::visit(Visitor& visitor) { visitor.parameter("weight", weight, Init::constant(1)); }
Tensor RmsNorm::forward(const Tensor& x) const {
  const ModuleScope here = scope();
  return rms_norm(x, weight, eps_);
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
  const ModuleScope here = scope();
  return w2.forward(swiglu(w1.forward(x), w3.forward(x)));
}

}  // namespace tessera::nn
