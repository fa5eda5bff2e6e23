// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/fused_linear.h"

#include "tessera/autograd/checkpoint.h"
#include "tessera/dist/layout.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/views/views.h"

#include <algorithm>

namespace tessera::nn {
namespace {

// The bytes of this rank.
Tensor part(const Tensor& t) { return t.is_distributed() ? Tensor(t.impl().local) : t; }

bool lie_together(std::span<const Tensor> weights) {
  const Tensor first = part(weights[0]);
  int64_t next = first.offset();
  for (const Tensor& weight : weights) {
    const Tensor w = part(weight);
    if (&w.storage() != &first.storage() || !w.is_contiguous() || w.offset() != next) return false;
    next += w.numel();
  }
  return true;
}

// Moves the weights' bytes to one storage, where each is still the tensor that it was.
void move_together(std::span<const Tensor> weights) {
  const NoGrad guard;
  const OutsideCheckpoint outside;
  std::vector<Tensor> parts;
  for (const Tensor& w : weights) parts.push_back(part(w).detach());
  const Tensor whole = cat(parts);  // (sum of out, in)
  int64_t offset = 0;
  for (const Tensor& w : weights) {
    const auto move = [&](TensorImpl& impl) {
      impl.storage = whole.impl().storage;
      impl.strides = whole.strides();
      impl.offset = offset;
      impl.contiguous = true;
    };
    move(w.impl());
    if (w.is_distributed()) move(*w.impl().local);
    offset += w.numel();
  }
}

// All weights as one, (sum of out, in), without a copy.
Tensor joined(std::span<const Tensor> weights) {
  int64_t rows = 0;
  for (const Tensor& w : weights) rows += w.size(0);
  const Shape shape{rows, weights[0].size(1)};
  const Tensor first = part(weights[0]);
  const Tensor whole = alias(first, shape, contiguous_strides(shape), first.offset());
  return weights[0].is_distributed() ? make_distributed(whole, shape, weights[0].impl().layout)
                                     : whole;
}

// One node for all products: their gradients meet in one tensor, so that backward is two products.
Function fused(std::vector<int64_t> sizes) {
  const auto pieces = [sizes](const Tensor& y, int dim) {
    TensorList all;
    int64_t at = 0;
    for (int64_t n : sizes) {
      all.push_back(slice(y, dim, {at, at + n}));
      at += n;
    }
    return all;
  };
  return {"fused_linear",
          [pieces](FunctionContext& context, Tensors in) {
            const Tensor whole = joined(in.subspan(1));
            context.save({in[0], whole});
            return pieces(linear(in[0], whole), -1);
          },
          [sizes, pieces](FunctionContext& context, const Grads& dy) {
            const std::vector<Tensor> saved = context.saved();
            const Tensor &x = saved[0], &whole = saved[1];
            std::vector<Tensor> parts;
            for (size_t i = 0; i < sizes.size(); ++i) {
              Shape shape = x.shape();
              shape[shape.rank() - 1] = sizes[i];
              parts.push_back(dy[i].defined()
                                  ? dy[i]
                                  : call_like(op::Fill{shape, x.dtype(), x.device(), 0}, x));
            }
            const Tensor all = cat(parts, -1);  // (..., sum of out)
            const Needs& needs = context.needs();
            Grads dx;
            dx.push_back(needs[0] ? matmul(all, whole) : Tensor());
            bool any = false;
            for (size_t i = 0; i < sizes.size(); ++i) any |= needs[i + 1];
            if (any) {
              for (Tensor& dw : pieces(contract_leading(all, x), 0)) dx.push_back(dw);
            }
            return dx;
          }};
}

}  // namespace

std::vector<Tensor> fused_linear(const Tensor& x, std::span<const Tensor> weights) {
  bool alike = weights.size() > 1 && !x.device().is_meta();
  for (const Tensor& w : weights) {
    const Layout* layout = w.impl().layout;
    alike = alike && w.rank() == 2 && w.dtype() == x.dtype() && w.device() == x.device() &&
            w.size(1) == x.size(-1) && layout == weights[0].impl().layout &&
            w.is_distributed() == x.is_distributed() && (!layout || layout->is_replicated());
  }
  std::vector<Tensor> all;
  if (!alike) {
    for (const Tensor& w : weights) all.push_back(linear(x, w));
    return all;
  }
  if (!lie_together(weights)) move_together(weights);
  std::vector<int64_t> sizes;
  std::vector<Tensor> in{x};
  for (const Tensor& w : weights) {
    sizes.push_back(w.size(0));
    in.push_back(w);
  }
  for (Tensor& y : tessera::apply(fused(std::move(sizes)), in)) all.push_back(std::move(y));
  return all;
}

}  // namespace tessera::nn
