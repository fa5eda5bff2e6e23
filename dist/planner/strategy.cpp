// SPDX-License-Identifier: Apache-2.0
// The search: few axes disagree at a time, so all combinations of their choices are priced with the
// very plans that would run.
#include "tessera/dist/planner/strategy.h"

#include "tessera/dist/redistribute/plan.h"

#include <algorithm>

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

// Two pending reductions commute only if both are sums (or averages), or the same.
bool mixes_reductions(const AxisStates& states) {
  const auto family = [](ReduceOp op) { return op == ReduceOp::avg ? ReduceOp::sum : op; };
  const Placement* seen = nullptr;
  for (const AxisState& s : states) {
    if (s.placement.kind != Kind::partial) continue;
    if (seen && family(seen->op) != family(s.placement.op)) return true;
    seen = &s.placement;
  }
  return false;
}

// Whether cuts of `dim` by these axes fall on whole factor units, at the same places as the cuts of
// the factor: at every member, for even parts and uneven ones.
bool cuts_agree(const Mesh& mesh, std::span<const int> axes, int64_t factor_size, int64_t scale) {
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
  Chooser(const ShardingRule& rule, const Mesh& mesh, std::span<const StrategyInput> inputs,
          std::span<const TensorMeta> outputs, bool in_place)
      : rule_(rule), mesh_(mesh), inputs_(inputs), outputs_(outputs), in_place_(in_place) {
    all_ = axis_choices(rule, inputs);
    for (int a = 0; a < mesh.axes(); ++a) options_.push_back(options(a));
    chosen_.resize(static_cast<size_t>(mesh.axes()));
  }

  bool run(Strategy& best) {
    descend(0);
    if (!found_) {  // what the inputs agree on cuts a factor between its units
      for (Choices& c : options_) c = all_;
      descend(0);
    }
    if (!found_) return false;
    best = std::move(best_);
    return true;
  }

 private:
  // Choices for an axis: the one that the inputs already agree with, or all.
  [[nodiscard]] Choices options(int axis) const {
    for (const AxisChoice& c : all_) {
      bool agrees = true;
      for (size_t i = 0; agrees && i < inputs_.size(); ++i) {
        if (!inputs_[i].meta) continue;
        agrees = inputs_[i].states[static_cast<size_t>(axis)].placement ==
                 placement_under(c, rule_, static_cast<int>(i));
      }
      if (agrees) return {c};
    }
    return all_;
  }

  void descend(size_t axis) {
    if (axis == options_.size()) return price();
    for (const AxisChoice& c : options_[axis]) {
      chosen_[axis] = c;
      descend(axis + 1);
    }
  }

  // The order in which the axes of a factor cut it: as they already cut the largest input, then the
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
      if (cuts.size() < 1) continue;
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
        // What an in-place op writes without the cut factor is written alike everywhere.
        if (in_place_ && o >= rule_.inputs() && c.kind == AxisChoice::Kind::factor &&
            p.kind == Kind::partial)
          p = Replicate();
        s.operands[static_cast<size_t>(o)][static_cast<size_t>(a)].placement = p;
      }
      if (mixes_reductions(s.operands[static_cast<size_t>(o)])) return false;
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
    double small = 0;  // what decides between strategies that send nothing
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const StrategyInput& in = inputs_[i];
      if (!in.meta || in.states == s.operands[i]) continue;
      if (in.written) return;
      const RedistributePlan plan = plan_redistribute(mesh_, in.states, s.operands[i]);
      const double bytes = static_cast<double>(in.meta->shape.numel() * item_size(in.meta->dtype));
      for (const RedistributeStep& step : plan.steps) {
        s.asks |= communicates(step.move) || step.move == Move::pad;
        small += 1e-3 * bytes;
        if (communicates(step.move)) s.received += 1;         // a collective is never free
        if (step.move == Move::pad) s.received += 1 + bytes;  // nor is a field of zeros
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
  const Mesh& mesh_;
  std::span<const StrategyInput> inputs_;
  std::span<const TensorMeta> outputs_;
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
    bool used = inputs.empty();  // an op without inputs may be cut anywhere
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

// In-place ops on lists work on entries that share no factor: each may lie in its own way. Gives the
// operands' entries, -1 for operands without factors; none where an entry writes nothing, because
// what it is for is then unknown.
std::vector<int> entries_of(const ShardingRule& rule) {
  std::vector<int> entry_of_factor(rule.factors().size());
  for (size_t f = 0; f < entry_of_factor.size(); ++f) entry_of_factor[f] = static_cast<int>(f);
  for (int o = 0; o < rule.operands(); ++o) {
    int joined = -1;
    for (const DimFactor& d : rule.dims(o)) {
      if (d.factor < 0) continue;
      const int entry = entry_of_factor[static_cast<size_t>(d.factor)];
      if (joined < 0) joined = entry;
      std::replace(entry_of_factor.begin(), entry_of_factor.end(), entry, joined);
    }
  }
  std::vector<int> entries;
  for (int o = 0; o < rule.operands(); ++o) {
    int entry = -1;
    for (const DimFactor& d : rule.dims(o)) {
      if (d.factor >= 0) entry = entry_of_factor[static_cast<size_t>(d.factor)];
    }
    entries.push_back(entry);
  }
  for (int i = 0; i < rule.inputs(); ++i) {
    const int entry = entries[static_cast<size_t>(i)];
    if (entry >= 0 && std::find(entries.begin() + rule.inputs(), entries.end(), entry) == entries.end())
      return {};
  }
  return entries;
}

bool choose_by_entry(const ShardingRule& rule, const Mesh& mesh,
                     std::span<const StrategyInput> inputs, std::span<const TensorMeta> outputs,
                     Strategy& best) {
  const std::vector<int> entries = entries_of(rule);
  std::vector<int> distinct = entries;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  best.operands.assign(static_cast<size_t>(rule.operands()), AxisStates{});
  for (int entry : distinct) {
    std::vector<StrategyInput> own(inputs.begin(), inputs.end());
    for (size_t i = 0; i < own.size(); ++i) {
      if (entries[i] != entry) own[i].meta = nullptr;
    }
    Strategy part;
    if (!Chooser(rule, mesh, own, outputs, true).run(part)) return false;
    for (size_t o = 0; o < entries.size(); ++o) {
      if (entries[o] == entry) best.operands[o] = part.operands[o];
    }
    best.received += part.received;
    best.asks |= part.asks;
  }
  return !distinct.empty();
}

}  // namespace

Strategy choose_strategy(std::string_view op, const ShardingRule& rule, const Mesh& mesh,
                         std::span<const StrategyInput> inputs,
                         std::span<const TensorMeta> outputs, bool in_place) {
  Strategy best;
  if (in_place && choose_by_entry(rule, mesh, inputs, outputs, best)) return best;
  if (Chooser(rule, mesh, inputs, outputs, in_place).run(best)) return best;
  std::string lie;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].meta) continue;
    const Layout* layout = Layout::intern(&mesh, inputs[i].states);
    lie += concat("\n  input ", i, ": ", *inputs[i].meta, ' ', layout->placements_text(),
                  inputs[i].written ? " (written)" : "");
  }
  fail<LayoutError>(op, "writes in place, so what it writes cannot move, and it cannot run where its operands lie:",
                    lie, "\n  redistribute the other operands to the layout of the written ones");
}

}  // namespace tessera
