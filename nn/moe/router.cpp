// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/moe/router.h"

#include "tessera/core/message.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/arange/arange.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/cumsum/cumsum.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/gather/gather.h"
#include "tessera/kernels/histogram/histogram.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/one_hot/one_hot.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/softmax/softmax.h"
#include "tessera/kernels/topk/topk.h"
#include "tessera/kernels/views/views.h"

#include <cmath>
#include <limits>

namespace tessera::nn {
namespace {

constexpr std::string_view kName = "router";

const Router::Config& checked(const Router::Config& c) {
  if (c.experts < 1 || c.top_k < 1 || c.top_k > c.experts)
    fail<ValueError>(kName, "top_k is ", c.top_k, " of ", counted(c.experts, "expert"),
                     ": expected 1 to ", c.experts);
  for (const auto& [field, value] :
       {std::pair("balance_loss", c.balance_loss), std::pair("z_loss", c.z_loss),
        std::pair("capacity_factor", c.capacity_factor)}) {
    if (!std::isfinite(value) || value < 0)
      fail<ValueError>(kName, field, " is ", value, ": expected 0 (off) or more");
  }
  if (c.groups == 0 && c.limited_groups == 0) return c;
  if (c.groups < 1 || c.experts % c.groups != 0 || c.experts / c.groups < 2)
    fail<ValueError>(kName, counted(c.experts, "expert"), " in ", counted(c.groups, "group"),
                     ": expected groups of equal size, of 2 experts or more");
  if (c.limited_groups < 1 || c.limited_groups > c.groups)
    fail<ValueError>(kName, "limited_groups is ", c.limited_groups, " of ",
                     counted(c.groups, "group"), ": expected 1 to ", c.groups);
  if (c.limited_groups * (c.experts / c.groups) < c.top_k)
    fail<ValueError>(kName, "top_k is ", c.top_k, ", but ", counted(c.limited_groups, "group"),
                     " with ", counted(c.limited_groups * (c.experts / c.groups), "expert"),
                     "; take more groups or fewer experts");
  return c;
}

// The least number keeps the result finite where all of x are zero.
Tensor normalised(const Tensor& x) { return x / (sum(x, {-1}, true) + 1e-20); }

// 1 at each of the ids, 0 elsewhere: ids (..., K) -> (..., experts).
Tensor taken(const Tensor& ids, int64_t experts, DType dtype) {
  return scatter_zeros(experts, -1, ids, full_like(cast(ids, dtype), 1));
}

// Which places of x (..., dim) hold no token, lying as x. Nothing is sent where padding is cut over
// the axes that cut x, or whole.
Tensor padding_of(const Tensor& padding, const Tensor& x) {
  if (!padding.defined()) return padding;
  if (padding.dtype() != DType::bool_ || padding.shape() != x.shape().without(x.rank() - 1)) {
    fail<ShapeError>(kName, "padding is ", padding.meta(), " of x ", x.meta(),
                     ": expected a bool for each token");
  }
  return x.is_distributed() ? redistribute(padding, layout_of(x)) : padding;
}

// x with its sequences, along dim -2, whole on each rank.
Tensor whole_sequences(const Tensor& x) {
  if (!x.is_distributed()) return x;
  Layout whole = layout_of(x);
  for (const int axis : layout_of(x).axes_of(x.rank() - 2))
    whole = whole.with(whole.mesh().axis(axis).name, Replicate());
  return redistribute(x, whole);
}

// The whole of a value that each rank has.
Tensor own_copy(const Tensor& x, std::string_view what) {
  if (!x.is_distributed()) return x;
  if (!layout_of(x).is_replicated())
    fail<LayoutError>("update_expert_bias", what, " lies as ", layout_of(x),
                      ": expected a replicated tensor; redistribute it first");
  return local(x);
}

}  // namespace

Gate::Gate(int64_t dim, int64_t experts, Init init, DType dtype)
    : weight(parameter({experts, dim}, dtype)), init_(init) {}
void Gate::visit(Visitor& visitor) { visitor.parameter("weight", weight, init_); }
Tensor Gate::forward(const Tensor& x) const {
  return linear(cast(x, compute_dtype(x.dtype())), cast(weight, compute_dtype(x.dtype())));
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

// Tokens are numbered in the whole of a distributed batch.
Tensor Router::in_turn(const Tensor& scores) const {
  Shape shape = scores.shape();
  shape[scores.rank() - 1] = config_.top_k;
  const Tensor ids =
      reshape(arange(shape.numel(), DType::i64, scores.device()) % config_.experts, shape);
  return scores.is_distributed() ? distribute(ids, layout_of(scores)) : ids;
}

Tensor Router::choose(const Tensor& scores, const Tensor& bias) const {
  if (config_.force_balance) return in_turn(scores);
  Tensor choice = scores;
  if (bias.defined()) choice = choice + cast(bias.detach(), choice.dtype());
  if (config_.groups > 0) choice = limited(choice);
  return topk(choice, config_.top_k)[1];
}

// (..., T, K) -> the same with `experts` for what an expert has no room for.
Tensor Router::within_capacity(const Tensor& experts, const Tensor& padding) const {
  const Tensor ids = whole_sequences(experts);
  // How many tokens of the sequence have chosen the expert, up to this one.
  const Tensor place = gather(cumsum(taken(ids, config_.experts + 1, DType::i64), -2), -1, ids);
  // Less what rounding may add: 1.1 times 10 is 11, not 12.
  constexpr double kLess = 1 - 1e-12;
  const auto all = static_cast<double>(config_.experts);
  Tensor full;
  if (padding.defined()) {
    const Tensor choices = sum(cast(ids < config_.experts, DType::f64), {-2, -1}, true);
    full = place > cast(ceil(config_.capacity_factor * (choices / all) * kLess), DType::i64);
  } else {
    const double even = static_cast<double>(ids.shape()[ids.rank() - 2] * config_.top_k) / all;
    full = place > std::ceil(config_.capacity_factor * even * kLess);
  }
  const Tensor kept = masked_fill(ids, full, config_.experts);
  return experts.is_distributed() ? redistribute(kept, layout_of(experts)) : kept;
}

// scores (..., T, E) -> (..., T): each token's part of T times the balance loss of its sequence.
Tensor Router::balance_of(const Tensor& scores, const Tensor& experts,
                          const Tensor& padding) const {
  const Tensor all = sum(taken(experts, config_.experts + 1, scores.dtype()), {-2}, true);
  Tensor counts = slice(all, -1, {0, config_.experts});  // (..., 1, E)
  if (counts.is_distributed()) counts = redistribute(counts, layout_of(counts).without_partials());
  const Tensor shares = config_.score == Score::softmax ? scores : normalised(scores);
  const Tensor each = sum(shares * counts, {-1});
  const auto number = static_cast<double>(config_.experts);
  if (!padding.defined()) {
    const auto choices = static_cast<double>(scores.shape()[scores.rank() - 2] * config_.top_k);
    return each * (config_.balance_loss / (choices / number));
  }
  // A sequence of padding alone has no choices to divide by.
  const Tensor choices = clamp(sum(cast(counts, DType::f64), {-1}), {.min = 1});  // (..., 1)
  return each * cast(config_.balance_loss / (choices / number), each.dtype());
}

Tensor Router::sums_of(const Tensor& logits, const Tensor& scores, const Tensor& experts,
                       const Tensor& padding) const {
  const auto sum_of_tokens = [&](const Tensor& each) {
    return sum(padding.defined() ? masked_fill(each, padding, 0) : each);
  };
  // A sum of all logits is finite where each of them is.
  const Tensor all = sum(logits.detach(), {-1}), none = zeros_like(all);
  const Tensor not_finite = cast(logical_not(isfinite(all)), all.dtype());
  const Tensor balance = config_.balance_loss > 0 ? balance_of(scores, experts, padding) : none;
  Tensor z = none;
  if (config_.z_loss > 0) {
    const Tensor size = logsumexp(logits, {-1});
    z = size * size * config_.z_loss;
  }
  return stack({sum_of_tokens(balance), sum_of_tokens(z), sum_of_tokens(not_finite)});
}

// How many tokens have each expert.
Tensor Router::counts_of(const Tensor& experts) const {
  return slice(bincount(experts, config_.experts + 1), 0, {0, config_.experts});
}

Routing Router::forward(const Tensor& x, const Tensor& bias, const Tensor& padding) const {
  // A cached step sees one token of a sequence, so generation and evaluation take them all.
  const bool limited_load = config_.capacity_factor > 0 && is_training();
  const bool per_sequence = config_.capacity_factor > 0 || config_.balance_loss > 0;
  if (per_sequence && x.rank() < 2)
    fail<ShapeError>(
        kName, "x is ", x.shape(),
        ": expected (..., T, dim), since a balance loss or a capacity is of sequences");
  const Tensor no_token = padding_of(padding, x);  // (...)
  const Tensor logits = gate(x);                   // (..., E)
  const Tensor scores = config_.score == Score::sigmoid ? sigmoid(logits) : softmax(logits, -1);
  const Tensor best = choose(scores.detach(), bias);  // (..., K)
  Tensor experts =
      no_token.defined() ? masked_fill(best, unsqueeze(no_token, -1), config_.experts) : best;
  const Tensor sums = sums_of(logits, scores, experts, no_token);
  Tensor shares = gather(scores, -1, best);
  if (config_.route_norm) shares = normalised(shares);
  if (config_.route_scale != 1) shares = shares * config_.route_scale;

  const Tensor chosen = counts_of(experts);
  Tensor computed = chosen;
  if (limited_load) {
    experts = within_capacity(experts, no_token);
    computed = counts_of(experts);
  }
  if (limited_load || no_token.defined())
    shares = masked_fill(shares, experts == config_.experts, 0);
  return {shares, experts, stack({chosen, computed}), sums};
}

void update_expert_bias(const Tensor& bias, const Tensor& counts, double coefficient,
                        const Tensor& skip) {
  const NoGrad guard;
  const Tensor own = own_copy(bias, "bias"), load = cast(own_copy(counts, "counts"), DType::f64);
  Tensor step = sign(mean(load) - load);
  step = (step - mean(step)) * coefficient;
  if (skip.defined()) step = masked_fill(step, own_copy(skip, "skip"), 0);
  assign_(own, cast(own, DType::f64) + step);
}

}  // namespace tessera::nn
