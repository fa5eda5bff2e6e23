// SPDX-License-Identifier: Apache-2.0
// The search. A combination of choices is priced as a whole, by the plans that would run, since the
// axes of one dim are moved together.
#include "tessera/dist/planner/strategy.h"

#include "tessera/dist/redistribute/plan.h"

#include <algorithm>
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

double bytes_of(const TensorMeta& x) {
  return static_cast<double>(x.shape.numel() * item_size(x.dtype));
}

// What a choice would do on one axis: sums over operands, exact, so that the sum of all operands
// minus that of some is the sum of the others.
struct Estimate {
  int blocked = 0;  // written inputs that would change
  int misses = 0;   // inputs that have another placement now
  int asks = 0;     // inputs whose move needs permission
  Picoseconds cost = 0;
  Estimate& operator+=(const Estimate& e) {
    blocked += e.blocked, misses += e.misses, asks += e.asks, cost += e.cost;
    return *this;
  }
  friend Estimate operator-(const Estimate& x, const Estimate& y) {
    return {x.blocked - y.blocked, x.misses - y.misses, x.asks - y.asks, x.cost - y.cost};
  }
  [[nodiscard]] bool before(const Estimate& e) const {
    return (asks > 0) != (e.asks > 0) ? asks == 0 : cost < e.cost;
  }
};

class Chooser {
 public:
  Chooser(const ShardingRule& rule, Mesh mesh, std::span<const StrategyInput> inputs,
          std::span<const TensorMeta> outputs, bool in_place, const MeshCosts& costs)
      : rule_(rule),
        mesh_(mesh),
        inputs_(inputs),
        outputs_(outputs),
        in_place_(in_place),
        costs_(costs),
        all_(axis_choices(rule, inputs)),
        having_(rule.factors().size()),
        budget_(4 * rule.operands() * mesh.axes()) {
    for (int o = 0; o < rule.operands(); ++o) {
      const auto dims = rule.dims(o);
      for (size_t d = 0; d < dims.size(); ++d) {
        if (dims[d].factor < 0) continue;
        auto& had = having_[static_cast<size_t>(dims[d].factor)];
        if (had.empty() || had.back().first != o) had.emplace_back(o, static_cast<int>(d));
      }
    }
    for (int a = 0; a < mesh.axes(); ++a) rank(a);
    chosen_.resize(static_cast<size_t>(mesh.axes()));
  }

  bool run(Strategy& best) {
    for (const Choices& ranked : ranked_) {
      if (ranked.empty()) return false;  // on this axis, every choice changes a written operand
    }
    // The choice that the inputs match already, or the few cheapest.
    constexpr size_t kKept = 3;
    for (size_t a = 0; a < ranked_.size(); ++a) chosen_[a] = ranked_[a][0];
    search([&](size_t a) {
      return matched_[a] || mesh_.size(static_cast<int>(a)) == 1
                 ? 1
                 : std::min(kKept, ranked_[a].size());
    });
    if (!found_) {  // together, the best of the axes split a factor within a unit
      for (size_t a = 0; a < ranked_.size(); ++a) {
        const auto whole = std::find(ranked_[a].begin(), ranked_[a].end(), AxisChoice{});
        chosen_[a] = whole == ranked_[a].end() ? ranked_[a][0] : *whole;
      }
      constexpr size_t kTried = 16;
      search([&](size_t a) { return std::min(kTried, ranked_[a].size()); });
    }
    best_.priced = priced_;
    if (found_) best = std::move(best_);
    return found_;
  }

 private:
  // Orders the choices of an axis by what they cost on this axis alone, those that the inputs match
  // first, without those that would change a written operand. Time is linear in the rule.
  void rank(int axis) {
    Estimate whole, partial_outputs;  // all inputs replicated; the reductions of all outputs
    for (size_t i = 0; i < inputs_.size(); ++i) whole += moved(axis, i, Replicate());
    for (size_t o = 0; o < outputs_.size(); ++o) partial_outputs += reduced(axis, o);
    std::vector<std::pair<Estimate, size_t>> order;
    for (size_t c = 0; c < all_.size(); ++c) {
      Estimate e = whole;
      const auto change = [&](size_t i, Placement to) {
        e += moved(axis, i, to) - moved(axis, i, Replicate());
      };
      switch (all_[c].kind) {
        case AxisChoice::Kind::replicate: break;
        case AxisChoice::Kind::factor: {
          Estimate dropped = partial_outputs;
          for (const auto& [o, dim] : having_[static_cast<size_t>(all_[c].index)]) {
            const auto at = static_cast<size_t>(o);
            if (at < inputs_.size()) change(at, Shard(dim));
            else if (!outputs_.empty()) dropped = dropped - reduced(axis, at - inputs_.size());
          }
          if (!rule_.factors()[static_cast<size_t>(all_[c].index)].inside) e += dropped;
          break;
        }
        case AxisChoice::Kind::linear:
          for (int i : rule_.linearities()[static_cast<size_t>(all_[c].index)])
            change(static_cast<size_t>(i), Partial(all_[c].op));
          e += partial_outputs;
          break;
        case AxisChoice::Kind::monotone:
          for (size_t i = 0; i < inputs_.size(); ++i) change(i, Partial(all_[c].op));
          e += partial_outputs;
          break;
      }
      if (e.blocked == 0) order.emplace_back(e, c);
    }
    std::stable_sort(order.begin(), order.end(), [](const auto& x, const auto& y) {
      const bool fits = x.first.misses == 0, other = y.first.misses == 0;
      return fits != other ? fits : !fits && x.first.before(y.first);
    });
    Choices& ranked = ranked_.emplace_back();
    for (const auto& [e, c] : order) ranked.push_back(all_[c]);
    matched_.push_back(!order.empty() && order[0].first.misses == 0);
  }

  // An input brought to a placement on one axis.
  [[nodiscard]] Estimate moved(int axis, size_t i, Placement to) const {
    const StrategyInput& in = inputs_[i];
    if (!in.meta) return {};
    const Placement from = in.states[static_cast<size_t>(axis)].placement;
    if (from == to) return {};
    Estimate e{.blocked = in.written, .misses = 1};
    const double n = mesh_.size(axis), share = 1 - 1 / n;
    if (n == 1) return e;
    double bytes = bytes_of(*in.meta);  // that the ranks hold which differ on this axis alone
    for (int a = 0; a < mesh_.axes(); ++a) {
      const bool cut = in.states[static_cast<size_t>(a)].placement.kind == Kind::shard;
      if (a != axis && cut) bytes /= mesh_.size(a);
    }
    const auto sent = [&](double received) {
      e.asks = 1;
      return collective_cost(costs_, mesh_, std::span<const int>(&axis, 1), received);
    };
    if (from.kind == Kind::replicate) {
      e.cost = copy_cost(to.kind == Kind::shard ? bytes / n : bytes);
    } else if (from.kind == Kind::partial) {
      e.cost = sent((to.kind == Kind::shard ? 1 : 2) * share * bytes);
    } else if (to.kind == Kind::shard) {
      e.cost = sent(share * bytes / n);
    } else if (to.kind == Kind::partial) {
      e.asks = 1;
      e.cost = copy_cost(bytes);
    } else {
      e.cost = sent(share * bytes);
    }
    return e;
  }
  // The reduction of an output that is partial on one axis.
  [[nodiscard]] Estimate reduced(int axis, size_t output) const {
    return {.cost = reduction_cost(costs_, mesh_, std::span<const int>(&axis, 1),
                                   bytes_of(outputs_[output]))};
  }

  // Prices the start, then other choices of one axis at a time, keeping the best of all.
  template <class Count> void search(const Count& options) {
    price();
    for (bool better = true; better;) {
      const int before = better_;
      for (size_t a = 0; a < ranked_.size(); ++a) {
        const AxisChoice start = chosen_[a];
        AxisChoice kept = start;
        for (size_t c = 0; c < options(a); ++c) {
          if (ranked_[a][c] == start) continue;
          if (priced_ == budget_) return;
          chosen_[a] = ranked_[a][c];
          if (price()) kept = chosen_[a];
        }
        chosen_[a] = kept;
      }
      better = better_ > before;
    }
  }

  // The order in which axes shard a factor: as they already shard the written input or else the
  // largest, then the mesh's.
  AxisList order_of(int factor) const {
    AxisList order;
    std::pair<bool, int64_t> first{false, -1};
    for (const auto& [o, dim] : having_[static_cast<size_t>(factor)]) {
      const auto i = static_cast<size_t>(o);
      if (i >= inputs_.size() || !inputs_[i].meta) continue;
      const std::pair<bool, int64_t> rank{inputs_[i].written, inputs_[i].meta->shape.numel()};
      if (rank <= first) continue;
      AxisList cuts;
      for (int a : axes_of(inputs_[i].states, dim)) {
        if (cuts_factor(a, factor)) cuts.push_back(a);
      }
      if (cuts.empty()) continue;
      first = rank;
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

  [[nodiscard]] bool build(Strategy& s) const {
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
    for (int a = 0; a < mesh_.axes(); ++a) {
      const AxisChoice& c = chosen_[static_cast<size_t>(a)];
      if (c.kind != AxisChoice::Kind::factor) continue;
      const AxisList order = order_of(c.index);
      if (*std::min_element(order.begin(), order.end()) != a) continue;  // done at an earlier axis
      for (const auto& [o, dim] : having_[static_cast<size_t>(c.index)]) {
        if (!cuts_agree(mesh_, order, rule_.factors()[static_cast<size_t>(c.index)].size,
                        rule_.dims(o)[static_cast<size_t>(dim)].scale))
          return false;
        for (size_t i = 0; i < order.size(); ++i)
          s.operands[static_cast<size_t>(o)][static_cast<size_t>(order[i])].position =
              static_cast<int8_t>(i);
      }
    }
    return true;
  }

  // Prices the chosen strategy; true if it is the best so far.
  bool price() {
    ++priced_;
    Strategy s;
    if (!build(s)) return false;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const StrategyInput& in = inputs_[i];
      if (!in.meta || in.states == s.operands[i]) continue;
      if (in.written) return false;
      const RedistributePlan plan = plan_redistribute(mesh_, in.states, s.operands[i]);
      for (const RedistributeStep& step : plan.steps) s.asks |= asks(step.move);
      s.cost += plan_cost(costs_, mesh_, plan, bytes_of(*in.meta));
    }
    for (size_t o = 0; o < outputs_.size(); ++o) {
      const AxisStates& states = s.operands[inputs_.size() + o];
      AxisList partial;
      double held = bytes_of(outputs_[o]);
      for (int a = 0; a < mesh_.axes(); ++a) {
        const Kind kind = states[static_cast<size_t>(a)].placement.kind;
        if (kind == Kind::partial) partial.push_back(a);
        if (kind == Kind::shard) held /= mesh_.size(a);
      }
      s.cost +=
          reduction_cost(costs_, mesh_, std::span<const int>(partial.data(), partial.size()), held);
    }
    if (found_ && std::pair(s.asks, s.cost) >= std::pair(best_.asks, best_.cost)) return false;
    found_ = true;
    ++better_;
    best_ = std::move(s);
    return true;
  }

  const ShardingRule& rule_;
  Mesh mesh_;
  std::span<const StrategyInput> inputs_;
  std::span<const TensorMeta> outputs_;  // empty for in-place ops
  bool in_place_;
  const MeshCosts& costs_;
  Choices all_;
  std::vector<std::vector<std::pair<int, int>>> having_;  // by factor: operands and their dims
  int budget_;
  std::vector<Choices> ranked_;  // by axis
  std::vector<bool> matched_;    // by axis: the first choice fits the inputs as they are
  Choices chosen_;               // by axis
  bool found_ = false;
  int priced_ = 0, better_ = 0;
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
  // An op without inputs may be sharded anywhere.
  std::vector<bool> used(rule.factors().size(), inputs.empty());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].meta) continue;
    for (const DimFactor& d : rule.dims(static_cast<int>(i))) {
      if (d.factor >= 0) used[static_cast<size_t>(d.factor)] = true;
    }
  }
  for (size_t f = 0; f < rule.factors().size(); ++f) {
    if (used[f] && !rule.factors()[f].replicate)
      all.push_back({CK::factor, static_cast<int>(f), ReduceOp::sum});
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
                     const MeshCosts& costs, Strategy& best) {
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
    if (!Chooser(own_rule, mesh, own_inputs, {}, true, costs).run(part)) return false;
    for (size_t o = 0; o < own.size(); ++o)
      best.operands[static_cast<size_t>(own[o])] = part.operands[o];
    best.cost += part.cost;
    best.asks |= part.asks;
    best.priced += part.priced;
  }
  return true;
}

}  // namespace

Strategy choose_strategy(std::string_view op, const ShardingRule& rule, Mesh mesh,
                         std::span<const StrategyInput> inputs, std::span<const TensorMeta> outputs,
                         bool in_place, const MeshCosts& costs) {
  Strategy best;
  if (in_place) outputs = {};  // they are inputs too
  if (in_place && choose_by_entry(rule, mesh, inputs, costs, best)) return best;
  best = {};
  if (Chooser(rule, mesh, inputs, outputs, in_place, costs).run(best)) return best;
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
