// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/moe/moe.h"

#include "tessera/kernels/cumsum/cumsum.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/grouped_mm/grouped_mm.h"
#include "tessera/kernels/index_select/index_select.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/sort/sort.h"
#include "tessera/kernels/swiglu/swiglu.h"
#include "tessera/kernels/views/views.h"

namespace tessera::nn {
namespace {

DType wide(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

FeedForward shared_of(const MoE::Config& c) {
  return FeedForward({.dim = c.router.dim,
                      .hidden = c.shared_experts * c.hidden,
                      .gate = c.gate,
                      .output = c.output,
                      .dtype = c.router.dtype});
}

}  // namespace

GroupedExperts::GroupedExperts(int64_t experts, int64_t dim, int64_t hidden, Init gate, Init output,
                               DType dtype)
    : w1(parameter({experts, hidden, dim}, dtype)),
      w2(parameter({experts, dim, hidden}, dtype)),
      w3(parameter({experts, hidden, dim}, dtype)),
      gate_(gate),
      output_(output) {}
void GroupedExperts::visit(Visitor& visitor) {
  visitor.parameter("w1", w1, gate_);
  visitor.parameter("w2", w2, output_);
  visitor.parameter("w3", w3, output_);
}
Tensor GroupedExperts::forward(const Tensor& x, const Tensor& offsets) const {
  return grouped_mm(swiglu(grouped_mm(x, w1, offsets), grouped_mm(x, w3, offsets)), w2, offsets);
}

MoE::MoE(const Config& c)
    : router(c.router),
      experts(c.router.experts, c.router.dim, c.hidden, c.gate, c.output, c.router.dtype),
      config_(c) {
  if (c.shared_experts > 0) shared_experts.emplace(shared_of(c));
  if (c.balance) expert_bias = empty({c.router.experts}, wide(c.router.dtype), kMeta);
}
void MoE::visit(Visitor& visitor) {
  visitor.child("router", router);
  visitor.child("experts", experts);
  if (shared_experts) visitor.child("shared_experts", *shared_experts);
  if (expert_bias.defined()) visitor.buffer("expert_bias", expert_bias, Init::constant(0));
}

MoEResult MoE::forward(const Tensor& x) const {
  const Routing routing = router(x, expert_bias);
  const int64_t pairs = routing.experts.numel(), top_k = config_.router.top_k,
                tokens = pairs / top_k;
  // Pairs of a token and an expert, stable by expert; dropped ones are last, beyond the offsets.
  const Tensor order = argsort(reshape(routing.experts, {pairs}), 0);  // (tokens * top_k)
  const Tensor token = floor_divide(order, full({}, top_k, DType::i64, x.device()));
  const Tensor offsets = cumsum(select(routing.load, 0, 1), 0);  // (experts)
  const Tensor share = unsqueeze(index_select(reshape(routing.scores, {pairs}), 0, order), -1);
  const auto shared_out = [&](const Tensor& rows) { return cast(rows, share.dtype()) * share; };

  Tensor rows = index_select(reshape(x, {tokens, x.shape().back()}), 0, token);
  if (config_.score_before_experts) rows = cast(shared_out(rows), x.dtype());
  rows = experts(rows, offsets);
  rows = config_.score_before_experts ? cast(rows, share.dtype()) : shared_out(rows);
  Tensor y = reshape(cast(index_zeros(tokens, 0, token, rows), x.dtype()), x.shape());
  if (shared_experts) y = y + (*shared_experts)(x);
  return {y, routing.load, routing.sums};
}

}  // namespace tessera::nn
