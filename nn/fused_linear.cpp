// SPDX-License-Identifier: Apache-2.0
// Decides when concatenating weights pays, and splits the result so that gradients are written to
// one tensor. Weights that lie side by side already, as those that a pass over modules made whole,
// are one view.
#include "tessera/nn/fused_linear.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"

namespace tessera::nn {
namespace {

// y (..., sum of sizes) -> its pieces along the last dim. Their gradients are written to one
// tensor; gradients of slices would each be padded to y's size and added.
TensorList split_last(const Tensor& y, const std::vector<int64_t>& sizes) {
  return tessera::apply(
      {"split",
       [sizes](FunctionContext&, Tensors in) {
         TensorList pieces;
         int64_t at = 0;
         for (int64_t n : sizes) {
           pieces.push_back(slice(in[0], -1, {at, at + n}));
           at += n;
         }
         return pieces;
       },
       [sizes](FunctionContext&, const Grads& dy) {
         Tensor like;
         for (const Tensor& g : dy) like = like.defined() ? like : g;
         std::vector<Tensor> parts;
         for (size_t i = 0; i < sizes.size(); ++i) {
           Shape shape = like.shape();
           shape[shape.rank() - 1] = sizes[i];
           parts.push_back(dy[i].defined()
                               ? dy[i]
                               : call_like(op::Fill{shape, like.dtype(), like.device(), 0}, like));
         }
         return Grads{cat(parts, -1)};
       }},
      {y});
}

// The parts along dim 0 as one tensor: a view if each begins where the one before it ends.
Tensor joined(const std::vector<Tensor>& parts) {
  const auto part = [](const Tensor& t) { return t.is_distributed() ? Tensor(t.impl().local) : t; };
  const Tensor first = part(parts[0]);
  int64_t end = first.offset(), rows = 0;
  for (const Tensor& t : parts) {
    const Tensor p = part(t);
    if (!p.is_contiguous() || p.impl().storage != first.impl().storage || p.offset() != end)
      return cat(parts);
    end += p.numel();
    rows += p.size(0);
  }
  return tessera::apply(
      {"side_by_side",
       [rows](FunctionContext& context, Tensors in) {
         const Tensor x = in[0].is_distributed() ? Tensor(in[0].impl().local) : in[0];
         std::vector<int64_t> sizes;
         for (const Tensor& t : in) sizes.push_back(t.size(0));
         context.data = std::move(sizes);
         Shape shape = x.shape();
         shape[0] = rows;
         const Tensor y = alias(x, shape, x.strides(), x.offset());
         return TensorList{in[0].is_distributed() ? make_distributed(y, shape, in[0].impl().layout)
                                                  : y};
       },
       [](FunctionContext& context, const Grads& dy) {
         Grads pieces;
         int64_t at = 0;
         for (const int64_t n : std::any_cast<const std::vector<int64_t>&>(context.data)) {
           pieces.push_back(slice(dy[0], 0, {at, at + n}));
           at += n;
         }
         return pieces;
       }},
      parts)[0];
}

// Concatenation copies the weights, so the copy must be small compared with the matmul.
bool worth_joining(const Tensor& x, std::span<const Tensor> weights) {
  constexpr int64_t kRows = 64;
  bool worth = weights.size() > 1 && x.rank() > 0 && x.numel() >= kRows * x.size(-1);
  for (const Tensor& w : weights) {
    worth = worth && w.rank() == 2 && w.dtype() == x.dtype() && w.size(1) == x.size(-1) &&
            w.impl().layout == weights[0].impl().layout;
  }
  return worth && (!weights[0].is_distributed() || layout_of(weights[0]).is_replicated());
}

}  // namespace

std::vector<Tensor> fused_linear(const Tensor& x, std::span<const Tensor> weights,
                                 std::span<const Tensor> biases) {
  if (!biases.empty() && biases.size() != weights.size()) {
    fail<ValueError>("fused_linear", biases.size(), " biases for ", weights.size(),
                     " weights: expected one each, or none");
  }
  std::vector<Tensor> all;
  if (!worth_joining(x, weights)) {
    for (size_t i = 0; i < weights.size(); ++i) {
      const Tensor y = linear(x, weights[i]);
      all.push_back(biases.empty() ? y : y + biases[i]);
    }
    return all;
  }
  std::vector<int64_t> sizes;
  for (const Tensor& w : weights) sizes.push_back(w.size(0));
  const Tensor whole = joined({weights.begin(), weights.end()});  // (sum of out, in)
  Tensor product = linear(x, whole);                              // (..., sum of out)
  if (!biases.empty()) product = product + joined({biases.begin(), biases.end()});
  for (Tensor& y : split_last(product, sizes)) all.push_back(std::move(y));
  return all;
}

}  // namespace tessera::nn
