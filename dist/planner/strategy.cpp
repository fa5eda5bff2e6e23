// SPDX-License-Identifier: Apache-2.0
// The search: few axes disagree at a time, so all combinations of their choices are evaluated with
// the plans that would run.
#include "tessera/dist/planner/strategy.h"

#include "tessera/dist/redistribute/plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

namespace tessera {
namespace {

using Kind = Placement::Kind;
using Choices = std::vector<AxisChoice>;

int dim_of(const ShardingRule& rule, int operand, int factor) {
  const auto dims = rule.dims(operand);
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d].factor == factor) return static_cast<int>(d);
  }
  return -1;
}

ReduceOp joined_by(Join join) {
  return join == Join::sum ? ReduceOp::sum : join == Join::max ? ReduceOp::max : ReduceOp::min;
}

bool in_linearity(const ShardingRule& rule, int index, int operand) {
  const auto& set = rule.linearities()[static_cast<size_t>(index)];
  return std::find(set.begin(), set.end(), operand) != set.end();
}

// Whether shards of `dim` by these axes contain whole factor units and match the shards of the
// factor: on every member, for even and uneven shards.
bool cuts_agree(Mesh mesh, std::span<const int> axes, int64_t factor_size, int64_t scale) {
  int64_t parts = 1;
  for (int a : axes) parts *= mesh.size(a);
  if (scale == 1 || factor_size % parts == 0) return true;
  bool agree = true;
  for_each_member(mesh, axes, [&](std::span<const int> at) {
    Piece::Range f{0, factor_size, factor_size}, d{0, factor_size * scale, factor_size * scale};
    for (int a : axes) {
      f = chunk(f, mesh.size(a), at[static_cast<size_t>(a)]);
      d = chunk(d, mesh.size(a), at[static_cast<size_t>(a)]);
    }
    agree &= d.size == f.size * scale && (d.size == 0 || d.begin == f.begin * scale);
  });
  return agree;
}

class Chooser {
 public:
  Chooser(const ShardingRule& rule, Mesh mesh, std::span<const StrategyInput> inputs, bool in_place)
      : rule_(rule), mesh_(mesh), inputs_(inputs), in_place_(in_place) {
    all_ = axis_choices(rule, inputs);
    for (int a = 0; a < mesh.axes(); ++a) options_.push_back(options(a));
    chosen_.resize(static_cast<size_t>(mesh.axes()));
  }

  bool run(Strategy& best) {
    descend(0);
    if (!found_) {  // the inputs' common choice splits a factor within a unit
      for (Choices& c : options_) c = all_;
      descend(0);
    }
    if (!found_) return false;
    best = std::move(best_);
    return true;
  }

 private:
  // Choices for an axis: the one that the inputs already match, or the few with least
  // communication. The estimate considers only this axis; combinations are evaluated later.
  [[nodiscard]] Choices options(int axis) const {
    std::vector<std::pair<double, size_t>> ranked;
    for (size_t c = 0; c < all_.size(); ++c) {
      const auto [cost, agrees] = estimate(axis, all_[c]);
      if (agrees) return {all_[c]};
      ranked.emplace_back(cost, c);
    }
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& x, const auto& y) { return x.first < y.first; });
    Choices few;
    constexpr size_t kKept = 3;
    for (size_t i = 0; i < std::min(kKept, ranked.size()); ++i)
      few.push_back(all_[ranked[i].second]);
    return few;
  }

  // Bytes received to give the inputs the placement of `c` on `axis`, and whether they have it
  // already.
  [[nodiscard]] std::pair<double, bool> estimate(int axis, const AxisChoice& c) const {
    const double share = 1 - 1.0 / mesh_.size(axis);
    double cost = 0;
    bool agrees = true;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i].meta) continue;
      const Placement from = inputs_[i].states[static_cast<size_t>(axis)].placement;
      const Placement to = placement_under(c, rule_, static_cast<int>(i));
      if (from == to) continue;
      agrees = false;
      const double bytes =
          static_cast<double>(inputs_[i].meta->shape.numel() * item_size(inputs_[i].meta->dtype));
      if (inputs_[i].written) cost = std::numeric_limits<double>::infinity();
      if (from.kind == Kind::replicate) cost += 1e-6 * bytes;
      else if (from.kind == Kind::partial) cost += (to.kind == Kind::shard ? 1 : 2) * share * bytes;
      else if (to.kind == Kind::shard) cost += share * bytes / mesh_.size(axis);
      else cost += to.kind == Kind::partial ? bytes : share * bytes;
    }
    return {cost, agrees};
  }

  void descend(size_t axis) {
    if (axis == options_.size()) return price();
    for (const AxisChoice& c : options_[axis]) {
      chosen_[axis] = c;
      descend(axis + 1);
    }
  }

  // The order in which axes shard a factor: as they already shard the largest input, then the
  // mesh's.
  AxisList order_of(int factor) {
    AxisList order;
    int64_t largest = -1;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i].meta) continue;
      const int d = dim_of(rule_, static_cast<int>(i), factor);
      if (d < 0 || inputs_[i].meta->shape.numel() <= largest) continue;
      AxisList cuts;
      for (int a : axes_of(inputs_[i].states, d)) {
        if (cuts_factor(a, factor)) cuts.push_back(a);
      }
      if (cuts.empty()) continue;
      largest = inputs_[i].meta->shape.numel();
      order = cuts;
    }
    for (int a = 0; a < mesh_.axes(); ++a) {
      if (cuts_factor(a, factor) && std::find(order.begin(), order.end(), a) == order.end())
        order.push_back(a);
    }
    return order;
  }
  [[nodiscard]] bool cuts_factor(int axis, int factor) const {
    const AxisChoice& c = chosen_[static_cast<size_t>(axis)];
    return c.kind == AxisChoice::Kind::factor && c.index == factor;
  }

  [[nodiscard]] bool build(Strategy& s) {
    s.operands.assign(static_cast<size_t>(rule_.operands()), AxisStates{});
    for (int o = 0; o < rule_.operands(); ++o) {
      for (int a = 0; a < mesh_.axes(); ++a) {
        const AxisChoice& c = chosen_[static_cast<size_t>(a)];
        Placement p = placement_under(c, rule_, o);
        // A written operand of an in-place op without the sharded factor gets equal values on all
        // ranks.
        if (in_place_ && o >= rule_.inputs() && c.kind == AxisChoice::Kind::factor &&
            p.kind == Kind::partial)
          p = Replicate();
        s.operands[static_cast<size_t>(o)][static_cast<size_t>(a)].placement = p;
      }
      if (!reductions_commute(s.operands[static_cast<size_t>(o)])) return false;
    }
    for (size_t f = 0; f < rule_.factors().size(); ++f) {
      const AxisList order = order_of(static_cast<int>(f));
      if (order.empty()) continue;
      for (int o = 0; o < rule_.operands(); ++o) {
        const int d = dim_of(rule_, o, static_cast<int>(f));
        if (d < 0) continue;
        if (!cuts_agree(mesh_, order, rule_.factors()[f].size,
                        rule_.dims(o)[static_cast<size_t>(d)].scale))
          return false;
        for (size_t i = 0; i < order.size(); ++i)
          s.operands[static_cast<size_t>(o)][static_cast<size_t>(order[i])].position =
              static_cast<int8_t>(i);
      }
    }
    return true;
  }

  void price() {
    Strategy s;
    if (!build(s)) return;
    double small = 0;  // tie-breaker between strategies without communication
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const StrategyInput& in = inputs_[i];
      if (!in.meta || in.states == s.operands[i]) continue;
      if (in.written) return;
      const RedistributePlan plan = plan_redistribute(mesh_, in.states, s.operands[i]);
      const double bytes = static_cast<double>(in.meta->shape.numel() * item_size(in.meta->dtype));
      for (const RedistributeStep& step : plan.steps) {
        s.asks |= asks(step.move);
        small += 1e-3 * bytes;
        if (communicates(step.move)) s.received += 1;         // a collective is never free
        if (step.move == Move::pad) s.received += 1 + bytes;  // nor is padding with zeros
      }
      s.received += plan.received(mesh_, bytes);
    }
    const double cost = s.received + 1e-3 * small;
    if (found_ && cost >= cost_) return;
    found_ = true;
    cost_ = cost;
    best_ = std::move(s);
  }

  const ShardingRule& rule_;
  Mesh mesh_;
  std::span<const StrategyInput> inputs_;
  bool in_place_;
  Choices all_;
  std::vector<Choices> options_;
  Choices chosen_;
  bool found_ = false;
  double cost_ = 0;
  Strategy best_;
};

}  // namespace

Placement placement_under(const AxisChoice& c, const ShardingRule& rule, int operand) {
  const bool output = operand >= rule.inputs();
  switch (c.kind) {
    case AxisChoice::Kind::replicate: return Replicate();
    case AxisChoice::Kind::factor: {
      const int d = dim_of(rule, operand, c.index);
      if (d >= 0) return Shard(d);
      const Factor& f = rule.factors()[static_cast<size_t>(c.index)];
      return output && !f.inside ? Partial(joined_by(f.join)) : Replicate();
    }
    case AxisChoice::Kind::linear:
      return output || in_linearity(rule, c.index, operand) ? Partial(c.op) : Replicate();
    case AxisChoice::Kind::monotone: {
      const bool flips = output && rule.monotone() < 0;
      const ReduceOp flipped = c.op == ReduceOp::max ? ReduceOp::min : ReduceOp::max;
      return Partial(flips ? flipped : c.op);
    }
  }
  return Replicate();
}

std::vector<AxisChoice> axis_choices(const ShardingRule& rule,
                                     std::span<const StrategyInput> inputs) {
  Choices all{{}};
  using CK = AxisChoice::Kind;
  for (size_t f = 0; f < rule.factors().size(); ++f) {
    if (rule.factors()[f].replicate) continue;
    bool used = inputs.empty();  // an op without inputs may be sharded anywhere
    for (size_t i = 0; i < inputs.size(); ++i)
      used |= inputs[i].meta && dim_of(rule, static_cast<int>(i), static_cast<int>(f)) >= 0;
    if (used) all.push_back({CK::factor, static_cast<int>(f), ReduceOp::sum});
  }
  for (size_t l = 0; l < rule.linearities().size(); ++l) {
    for (ReduceOp op : {ReduceOp::sum, ReduceOp::avg})
      all.push_back({CK::linear, static_cast<int>(l), op});
  }
  if (rule.monotone() != 0) {
    for (ReduceOp op : {ReduceOp::max, ReduceOp::min}) all.push_back({CK::monotone, -1, op});
  }
  return all;
}

namespace {

// In-place ops on lists work on entries that share no factor: each may have its own layout. Returns
// the entry of each operand, -1 for operands without factors.
std::vector<int> entries_of(const ShardingRule& rule) {
  std::vector<int> parent(rule.factors().size());
  std::iota(parent.begin(), parent.end(), 0);
  const auto root = [&](int f) {
    while (parent[static_cast<size_t>(f)] != f) {
      parent[static_cast<size_t>(f)] = parent[static_cast<size_t>(parent[static_cast<size_t>(f)])];
      f = parent[static_cast<size_t>(f)];
    }
    return f;
  };
  std::vector<int> first(static_cast<size_t>(rule.operands()), -1);  // a factor of each operand
  for (int o = 0; o < rule.operands(); ++o) {
    for (const DimFactor& d : rule.dims(o)) {
      if (d.factor < 0) continue;
      int& f = first[static_cast<size_t>(o)];
      if (f < 0) f = d.factor;
      parent[static_cast<size_t>(root(d.factor))] = root(f);
    }
  }
  for (int& f : first) f = f < 0 ? -1 : root(f);
  return first;
}

// The rule of one entry, on its own operands.
ShardingRule rule_of_entry(const ShardingRule& rule, std::span<const int> operands) {
  ShardingRule own;
  std::vector<std::pair<int, int>> factors;  // of the list's rule, and here
  const auto factor = [&](int f) {
    for (const auto& [theirs, ours] : factors) {
      if (theirs == f) return ours;
    }
    const Factor& source = rule.factors()[static_cast<size_t>(f)];
    factors.emplace_back(f, own.add_factor(source.size, source.letter));
    if (source.replicate) own.replicate_factor(factors.back().second);
    return factors.back().second;
  };
  bool outputs = false;
  for (int o : operands) {
    if (o >= rule.inputs() && !outputs) own.outputs_from_here(), outputs = true;
    std::vector<DimFactor> dims(rule.dims(o).begin(), rule.dims(o).end());
    for (DimFactor& d : dims) {
      if (d.factor >= 0) d.factor = static_cast<int16_t>(factor(d.factor));
    }
    own.operand(dims);
  }
  if (!outputs) own.outputs_from_here();
  return own;
}

// Chooses for each entry separately. False if an entry writes nothing, because its purpose is then
// unknown, or if one cannot run.
bool choose_by_entry(const ShardingRule& rule, Mesh mesh, std::span<const StrategyInput> inputs,
                     Strategy& best) {
  const std::vector<int> entry = entries_of(rule);
  std::map<int, std::vector<int>> operands;
  for (size_t o = 0; o < entry.size(); ++o) operands[entry[o]].push_back(static_cast<int>(o));
  std::map<int, std::vector<std::vector<int>>>
      linear;  // by entry, as indices of the entry's inputs
  for (const auto& set : rule.linearities()) {
    std::map<int, std::vector<int>> parts;
    for (int i : set) {
      const auto& own = operands[entry[static_cast<size_t>(i)]];
      parts[entry[static_cast<size_t>(i)]].push_back(
          static_cast<int>(std::find(own.begin(), own.end(), i) - own.begin()));
    }
    for (auto& [e, part] : parts) linear[e].push_back(std::move(part));
  }
  best.operands.assign(entry.size(), AxisStates{});
  for (const auto& [e, own] : operands) {
    std::vector<StrategyInput> own_inputs;
    for (int o : own) {
      if (o < rule.inputs()) own_inputs.push_back(inputs[static_cast<size_t>(o)]);
    }
    if (e < 0) {  // 0-dim operands are whole everywhere
      for (const StrategyInput& in : own_inputs) {
        if (!in.meta || in.states == AxisStates{}) continue;
        if (in.written) return false;
        best.asks |= plan_redistribute(mesh, in.states, AxisStates{}).communicates();
      }
      continue;
    }
    if (own_inputs.size() == own.size()) return false;
    ShardingRule own_rule = rule_of_entry(rule, own);
    for (auto& set : linear[e]) own_rule.linear(std::move(set));
    Strategy part;
    if (!Chooser(own_rule, mesh, own_inputs, true).run(part)) return false;
    for (size_t o = 0; o < own.size(); ++o)
      best.operands[static_cast<size_t>(own[o])] = part.operands[o];
    best.received += part.received;
    best.asks |= part.asks;
  }
  return true;
}

}  // namespace

Strategy choose_strategy(std::string_view op, const ShardingRule& rule, Mesh mesh,
                         std::span<const StrategyInput> inputs, bool in_place) {
  Strategy best;
  if (in_place && choose_by_entry(rule, mesh, inputs, best)) return best;
  best = {};
  if (Chooser(rule, mesh, inputs, in_place).run(best)) return best;
  std::string lie;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].meta) continue;
    const Layout layout = Layout::intern(mesh, inputs[i].states);
    lie += concat("\n  input ", i, ": ", *inputs[i].meta, ' ', layout.placements_text(),
                  inputs[i].written ? " (written)" : "");
  }
  fail<LayoutError>(op,
                    "writes in place, so its written operand cannot be redistributed, and it "
                    "cannot run with these layouts:",
                    lie, "\n  redistribute the other operands to the layout of the written ones");
}

}  // namespace tessera
