// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/moe/moe.h"

#include "tessera/dist/dtensor.h"
#include "tessera/dist/local_region.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/grouped_mm/grouped_mm.h"
#include "tessera/kernels/histogram/histogram.h"
#include "tessera/kernels/index_select/index_select.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/sort/sort.h"
#include "tessera/kernels/swiglu/swiglu.h"
#include "tessera/kernels/views/views.h"

namespace tessera::nn {
namespace {

// Of the shared experts' network; 0: there is none.
int64_t shared_hidden(const MoE::Config& c) {
  return c.shared_hidden > 0 ? c.shared_hidden : c.shared_experts * c.hidden;
}

FeedForward shared_of(const MoE::Config& c) {
  return FeedForward({.dim = c.router.dim,
                      .hidden = shared_hidden(c),
                      .gate = c.gate,
                      .output = c.output,
                      .dtype = c.router.dtype});
}

// A weight of the experts, of which each rank uses its part for rows of its own.
RegionInput entering(const Tensor& w) {
  const Layout layout = layout_of(w);
  std::vector<AxisType> types;
  for (int a = 0; a < layout.mesh().axes(); ++a) {
    const bool cut = layout.placement(a).kind == Placement::Kind::shard;
    types.push_back(cut ? AxisType::varying : AxisType::replicate);
  }
  return {w, types};
}

// The tokens (all dims of x but the last) of the rank that has most: the first on every axis.
int64_t tokens_of_fullest_rank(Layout layout, const Shape& x) {
  const std::vector<int> first(static_cast<size_t>(layout.mesh().axes()), 0);
  int64_t tokens = 1;
  for (int d = 0; d + 1 < x.rank(); ++d) tokens *= layout.range_at(first, x, d).size;
  return tokens;
}

// What each rank counted of its own tokens, which lie as `tokens`: Partial where they are cut.
Tensor counted(const Tensor& counts, Layout tokens) {
  Layout layout = tokens;
  for (int a = 0; a < layout.mesh().axes(); ++a) {
    if (tokens.placement(a).kind == Placement::Kind::shard)
      layout = layout.with(layout.mesh().axis(a).name, Partial());
  }
  return wrap_local(counts, layout, counts.shape());
}

// The router's load, of which experts computed `counts` (undefined: as many as the router says).
Tensor computed_load(const Tensor& load, const Tensor& counts) {
  if (!counts.defined()) return load;
  const Tensor chosen = select(load, 0, 0);
  return stack(
      {chosen, counts.is_distributed() ? redistribute(counts, layout_of(chosen)) : counts});
}

}  // namespace

GroupedExperts::GroupedExperts(int64_t experts, int64_t dim, int64_t hidden, Init gate, Init output,
                               Init up, DType dtype)
    : w1(parameter({experts, hidden, dim}, dtype)),
      w2(parameter({experts, dim, hidden}, dtype)),
      w3(parameter({experts, hidden, dim}, dtype)),
      gate_(gate),
      output_(output),
      up_(up) {}
void GroupedExperts::visit(Visitor& visitor) {
  visitor.parameter("w1", w1, gate_);
  visitor.parameter("w2", w2, output_);
  visitor.parameter("w3", w3, up_);
}
bool GroupedExperts::hidden_is_cut_over(std::string_view axis) const {
  if (!w2.is_distributed()) return false;
  const Layout layout = layout_of(w2);
  return layout.mesh().has(axis) && layout.placement(axis) == Shard(2);
}
Tensor GroupedExperts::forward(const Tensor& x, const Tensor& offsets) const {
  const auto network = [&](const Tensor& gate, const Tensor& out, const Tensor& up) {
    return grouped_mm(swiglu(grouped_mm(x, gate, offsets), grouped_mm(x, up, offsets)), out,
                      offsets);
  };
  if (!w1.is_distributed() || x.is_distributed()) return network(w1, w2, w3);
  // A region within the mixture's: the result stays local.
  Tensor y;
  const auto compute = [&](const std::vector<Tensor>& w) {
    y = network(w[0], w[1], w[2]);
    return std::vector<Tensor>();
  };
  (void)local_region(compute, {entering(w1), entering(w2), entering(w3)}, {});
  return y;
}

MoE::MoE(const Config& c)
    : router(c.router),
      experts(c.router.experts, c.router.dim, c.hidden, c.gate, c.output, c.up, c.router.dtype),
      config_(c) {
  if (shared_hidden(c) > 0) shared_experts.emplace(shared_of(c));
  if (c.shared_gate) {
    if (!shared_experts)
      fail<ValueError>("moe", "shared_gate without shared experts: give shared_experts or ",
                       "shared_hidden, or no gate");
    shared_expert_gate.emplace(c.router.dim, 1, c.router.gate, c.router.dtype);
  }
  if (c.balance) expert_bias = empty({c.router.experts}, compute_dtype(c.router.dtype), kMeta);
}
void MoE::visit(Visitor& visitor) {
  visitor.child("router", router);
  visitor.child("experts", experts);
  visitor.child("shared_experts", shared_experts);
  visitor.child("shared_expert_gate", shared_expert_gate);
  if (expert_bias.defined()) visitor.buffer("expert_bias", expert_bias, Init::constant(0));
}

void MoE::set_dispatcher(std::shared_ptr<const Dispatcher> dispatcher) {
  dispatcher_ = std::move(dispatcher);
}

MoEResult MoE::forward(const Tensor& x, const Tensor& padding) const {
  const Routing routing = router(x, expert_bias, padding);
  Tensor shared;
  auto [y, load] = routed(x, routing, [&] {
    if (shared_experts) shared = of_shared_experts(x);
  });
  if (shared_experts) y = y + shared;
  return {y, load, routing.sums};
}

Tensor MoE::of_shared_experts(const Tensor& x) const {
  const Tensor y = (*shared_experts)(x);
  return shared_expert_gate ? y * sigmoid((*shared_expert_gate)(x)) : y;
}

// Rows are sorted within each rank's own tokens, which no rule of an op can say.
std::pair<Tensor, Tensor> MoE::routed(const Tensor& x, const Routing& routing,
                                      const std::function<void()>& meanwhile) const {
  if (!x.is_distributed()) {
    const Dispatched all = mixture(x, routing, x.numel() / x.shape().back(), meanwhile);
    return {all.rows, computed_load(routing.load, all.counts)};
  }
  const Layout given = layout_of(x);
  Layout own = given, made = given, returned = given;  // of tokens, of their sums, of y
  std::vector<AxisType> in, out;
  for (int a = 0; a < given.mesh().axes(); ++a) {
    const std::string& axis = given.mesh().axis(a).name;
    const Placement lies = given.placement(a);
    if (lies.kind == Placement::Kind::partial ||
        (lies.kind == Placement::Kind::shard && lies.dim >= x.rank() - 1)) {
      fail<LayoutError>("moe", "x ", x.meta(), " is ", given.text(), ": axis ", axis,
                        " must cut its tokens, or none of its dims; redistribute it");
    }
    const bool sums = experts.hidden_is_cut_over(axis);
    if (sums && lies.kind == Placement::Kind::shard) {
      fail<LayoutError>("moe", "axis ", axis, " cuts the experts' hidden dim, and x ", x.meta(),
                        " too, which is ", given.text(), ": give x Replicate on ", axis);
    }
    in.push_back(sums ? AxisType::replicate : AxisType::varying);
    out.push_back(sums ? AxisType::partial : AxisType::varying);
    if (sums) {
      for (Layout* l : {&made, &returned}) *l = l->with(axis, Partial());
    } else if (lies.kind == Placement::Kind::replicate) {
      for (Layout* l : {&own, &made}) *l = l->with(axis, Shard(x.rank() - 2));
    }
  }
  Tensor counts;  // of this rank
  const auto compute = [&](const std::vector<Tensor>& part) {
    const Dispatched own_part = mixture(part[0], {part[1], part[2], {}, {}},
                                        tokens_of_fullest_rank(own, x.shape()), meanwhile);
    counts = own_part.counts;
    return std::vector<Tensor>{own_part.rows};
  };
  const auto entering = [&](const Tensor& t) { return RegionInput{redistribute(t, own), in}; };
  const Tensor y =
      local_region(compute, {entering(x), entering(routing.scores), entering(routing.experts)},
                   {{made, x.shape(), out}})[0];
  if (counts.defined()) counts = counted(counts, own);
  return {redistribute(y, returned), computed_load(routing.load, counts)};
}

Dispatched MoE::mixture(const Tensor& x, const Routing& routing, int64_t most_tokens,
                        const std::function<void()>& meanwhile) const {
  const int64_t pairs = routing.experts.numel(), top_k = config_.router.top_k,
                tokens = pairs / top_k;
  // Pairs of a token and an expert, stable by expert; those of no expert are last, beyond the
  // counts.
  const Tensor expert = reshape(routing.experts, {pairs});
  const Tensor order = argsort(expert, 0, false, config_.router.experts + 1);  // (tokens * top_k)
  const Tensor token = floor_divide(order, full({}, top_k, DType::i64, x.device()));
  const Tensor counts =
      slice(bincount(expert, config_.router.experts + 1), 0, {0, config_.router.experts});
  const Tensor share = unsqueeze(index_select(reshape(routing.scores, {pairs}), 0, order), -1);
  const auto shared_out = [&](const Tensor& rows) { return cast(rows, share.dtype()) * share; };

  Tensor rows = index_select(reshape(x, {tokens, x.shape().back()}), 0, token);
  if (config_.score_before_experts) rows = cast(shared_out(rows), x.dtype());
  const auto network = [&](const Tensor& in, const Tensor& offsets) {
    return experts(in, offsets);
  };
  const Dispatched made = dispatcher_->run({rows, counts, most_tokens, top_k}, network, meanwhile);
  // Narrow rows without a share to multiply add up in f32, too.
  rows = config_.score_before_experts ? made.rows : shared_out(made.rows);
  return {reshape(cast(index_zeros(tokens, 0, token, rows), x.dtype()), x.shape()), made.counts};
}

}  // namespace tessera::nn
