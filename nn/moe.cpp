// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/moe.h"

#include "tessera/kernels/arange/arange.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/cumsum/cumsum.h"
#include "tessera/kernels/gather/gather.h"
#include "tessera/kernels/grouped_mm/grouped_mm.h"
#include "tessera/kernels/histogram/histogram.h"
#include "tessera/kernels/index_select/index_select.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/one_hot/one_hot.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/softmax/softmax.h"
#include "tessera/kernels/sort/sort.h"
#include "tessera/kernels/swiglu/swiglu.h"
#include "tessera/kernels/topk/topk.h"
#include "tessera/kernels/views/views.h"

#include <limits>

namespace tessera::nn {
namespace {

DType wide(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

const Router::Config& checked(const Router::Config& c) {
  constexpr std::string_view kName = "router";
  if (c.experts < 1 || c.top_k < 1 || c.top_k > c.experts)
    fail<ValueError>(kName, "top_k is ", c.top_k, " of ", c.experts, " experts: expected 1 to ",
                     c.experts);
  if (c.groups == 0 && c.limited_groups == 0) return c;
  if (c.groups < 1 || c.experts % c.groups != 0 || c.experts / c.groups < 2)
    fail<ValueError>(kName, c.experts, " experts in ", c.groups,
                     " groups: expected groups of equal size, of 2 experts or more");
  if (c.limited_groups < 1 || c.limited_groups > c.groups)
    fail<ValueError>(kName, "limited_groups is ", c.limited_groups, " of ", c.groups,
                     " groups: expected 1 to ", c.groups);
  if (c.limited_groups * (c.experts / c.groups) < c.top_k)
    fail<ValueError>(kName, "top_k is ", c.top_k, ", but ", c.limited_groups, " groups have ",
                     c.limited_groups * (c.experts / c.groups),
                     " experts; take more groups or fewer experts");
  return c;
}

FeedForward shared_of(const MoE::Config& c) {
  return FeedForward({.dim = c.router.dim,
                      .hidden = c.shared_experts * c.hidden,
                      .gate = c.gate,
                      .output = c.output,
                      .dtype = c.router.dtype});
}

}  // namespace

Gate::Gate(int64_t dim, int64_t experts, Init init, DType dtype)
    : weight(parameter({experts, dim}, dtype)), init_(init) {}
void Gate::visit(Visitor& visitor) { visitor.parameter("weight", weight, init_); }
Tensor Gate::forward(const Tensor& x) const {
  return linear(cast(x, wide(x.dtype())), cast(weight, wide(x.dtype())));
}

Router::Router(const Config& c) : gate(checked(c).dim, c.experts, c.gate, c.dtype), config_(c) {}
void Router::visit(Visitor& visitor) { visitor.child("gate", gate); }
std::string Router::extra_repr() const {
  return concat("experts=", config_.experts, ", top_k=", config_.top_k);
}

// -inf for experts whose group is not one of the best.
Tensor Router::limited(const Tensor& choice) const {
  const int64_t groups = config_.groups, size = config_.experts / groups;
  Shape grouped = choice.shape().without(choice.rank() - 1);
  grouped.push_back(groups);
  grouped.push_back(size);
  const Tensor each = reshape(choice, grouped);  // (..., G, E / G)
  const Tensor best = topk(sum(topk(each, 2)[0], {-1}), config_.limited_groups)[1];  // (..., L)
  const Tensor left_out = sum(one_hot(best, groups), {-2}) == 0;                     // (..., G)
  return reshape(
      masked_fill(each, unsqueeze(left_out, -1), -std::numeric_limits<double>::infinity()),
      choice.shape());
}

Routing Router::forward(const Tensor& x, const Tensor& bias) const {
  const Tensor logits = gate(x);  // (..., E)
  const Tensor scores = config_.score == Score::sigmoid ? sigmoid(logits) : softmax(logits, -1);
  Tensor experts;  // (..., K)
  if (config_.force_balance) {
    Shape shape = x.shape();
    shape[x.rank() - 1] = config_.top_k;
    experts = reshape(arange(shape.numel(), DType::i64, x.device()) % config_.experts, shape);
  } else {
    Tensor choice = scores.detach();
    if (bias.defined()) choice = choice + cast(bias.detach(), choice.dtype());
    if (config_.groups > 0) choice = limited(choice);
    experts = topk(choice, config_.top_k)[1];
  }
  Tensor shares = gather(scores, -1, experts);
  // The least number keeps shares finite where all scores are zero.
  if (config_.route_norm) shares = shares / (sum(shares, {-1}, true) + 1e-20);
  if (config_.route_scale != 1) shares = shares * config_.route_scale;
  return {shares, experts};
}

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
  // Pairs of a token and an expert, stable by expert.
  const Tensor expert = reshape(routing.experts, {pairs});
  const Tensor order = argsort(expert, 0);  // (tokens * top_k)
  const Tensor token = floor_divide(order, full({}, top_k, DType::i64, x.device()));
  const Tensor counts = bincount(expert, config_.router.experts);
  const Tensor share = unsqueeze(index_select(reshape(routing.scores, {pairs}), 0, order), -1);
  const auto shared_out = [&](const Tensor& rows) { return cast(rows, share.dtype()) * share; };

  Tensor rows = index_select(reshape(x, {tokens, x.shape().back()}), 0, token);
  if (config_.score_before_experts) rows = cast(shared_out(rows), x.dtype());
  rows = experts(rows, cumsum(counts, 0));
  rows = config_.score_before_experts ? cast(rows, share.dtype()) : shared_out(rows);
  Tensor y = reshape(cast(index_zeros(tokens, 0, token, rows), x.dtype()), x.shape());
  if (shared_experts) y = y + (*shared_experts)(x);
  return {y, counts};
}

void update_expert_bias(const Tensor& bias, const Tensor& counts, double coefficient) {
  const NoGrad guard;
  const Tensor load = cast(counts, DType::f64);
  const Tensor step = sign(mean(load) - load);
  assign_(bias, cast(bias, DType::f64) + (step - mean(step)) * coefficient);
}

}  // namespace tessera::nn
