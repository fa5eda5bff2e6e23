// SPDX-License-Identifier: Apache-2.0
// A call: find or make the plan, redistribute inputs, run the local op on local tensors, wrap its
// outputs, record the call on global tensors.
#include "tessera/dist/planner/planner.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/planner/plan_cache_impl.h"
#include "tessera/dist/planner/strategy.h"
#include "tessera/dist/redistribute/redistribute.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>
#include <utility>

namespace tessera {
namespace {

struct Wishes {
  int automatic = 0;  // active AutoRedistribute scopes
};

// Reduces small tensors over the axes that shard a factor, for ops that join inside.
class AxisJoiner final : public Joiner {
 public:
  AxisJoiner(Mesh mesh, AxisList axes) : mesh_(mesh), axes_(std::move(axes)) {}
  void all_reduce(const Tensor& x, Join join) override {
    const std::span<const int> axes(axes_.data(), axes_.size());
    record_collective(CollectiveKind::all_reduce, mesh_, axes, x, trace_tag());
    const ReduceOp op = join == Join::sum   ? ReduceOp::sum
                        : join == Join::max ? ReduceOp::max
                                            : ReduceOp::min;
    mesh_.group(axes).all_reduce(x, op)->wait();
  }

 private:
  Mesh mesh_;
  AxisList axes_;
};

std::string draw(Tensors in) {
  std::string text;
  for (size_t i = 0; i < in.size(); ++i) {
    if (!in[i].defined()) continue;
    const Layout layout = detail::layout_of(in[i], "planner");
    text += concat("\n  input ", i, ": ", in[i].meta(), ' ', layout ? layout.text() : "plain");
  }
  return text;
}

using Layouts = SmallVector<Layout, 4>;  // of inputs, empty for plain or undefined ones

Layouts layouts_of(const OpRow& row, Tensors in) {
  Layouts layouts;
  for (const Tensor& t : in)
    layouts.push_back(t.defined() ? detail::layout_of(t, row.name) : Layout());
  return layouts;
}

// The mesh of the distributed inputs. Plain inputs must be 0-dim constants, equal on every rank.
Mesh common_mesh(const OpRow& row, Tensors in, const Layouts& layouts) {
  Layout first;
  for (Layout layout : layouts) {
    if (!layout) continue;
    if (first && first.mesh() != layout.mesh()) {
      fail<LayoutError>(row.name, "inputs are on different meshes:", draw(in),
                        "\n  bring them to one mesh by full_tensor() and distribute()");
    }
    first = layout;
  }
  for (size_t i = 0; i < in.size(); ++i) {
    if (!in[i].defined() || in[i].is_distributed()) continue;
    if (in[i].rank() > 0 || (in[i].requires_grad() && Context::current().grad_enabled)) {
      fail<LayoutError>(row.name, "a plain tensor is used with a distributed one:", draw(in),
                        "\n  make input ", i, " distributed: distribute(x, layout)",
                        in[i].rank() == 0 ? "; only constants may stay plain"
                                          : "; only 0-dim constants may stay plain");
    }
  }
  return first.mesh();
}

// The call that gives a tensor this layout, with the order of axes if it is not the mesh's.
std::string redistribute_call(size_t input, Layout target) {
  const Mesh mesh = target.mesh();
  std::string placements, orders;
  for (int a = 0; a < mesh.axes(); ++a) placements += concat(a ? ", " : "", target.placement(a));
  for (int d = 0; d <= target.last_sharded_dim(); ++d) {
    const AxisList axes = target.axes_of(d);
    if (std::is_sorted(axes.begin(), axes.end())) continue;
    orders += orders.empty() ? "{" : ", {";
    for (size_t i = 0; i < axes.size(); ++i)
      orders += concat(i ? ", \"" : "\"", mesh.axis(axes[i]).name, '"');
    orders += '}';
  }
  if (orders.empty()) return concat("redistribute(input ", input, ", {", placements, "})");
  return concat("redistribute(input ", input, ", Layout::ordered(mesh, {", placements, "}, {",
                orders, "}))");
}

[[noreturn]] void refuse(const OpRow& row, Tensors in, const OpPlan& plan) {
  std::string axes, fixes;
  for (size_t i = 0; i < in.size(); ++i) {
    const OpPlan::Input& p = plan.in[i];
    if (!p.moves) continue;
    const Mesh mesh = p.target.mesh();
    for (const RedistributeStep& s : p.moves->steps) {
      if (!asks(s.move)) continue;
      for (int a : s.axes) {
        const std::string name = concat('"', mesh.axis(a).name, '"');
        if (axes.find(name) == axes.npos) axes += (axes.empty() ? "" : ", ") + name;
      }
      fixes += concat("\n  fix: ", redistribute_call(i, p.target), " before the call (",
                      move_name(s.move), " of ", in[i].meta(), ')');
    }
  }
  fail<LayoutError>(row.name, "would have to communicate over axis ", axes, ':', draw(in), fixes,
                    "\n  or let the planner choose, while an AutoRedistribute lives");
}

// The contribution of a rank without elements of a dropped factor, so that kernels need no special
// case.
std::optional<double> neutral_value(const ShardingRule& rule, const Piece& piece, OpKind kind) {
  if (kind != OpKind::compute) return {};
  for (int i = 0; i < rule.inputs(); ++i) {
    const auto dims = rule.dims(i);
    for (size_t d = 0; d < dims.size() && d < piece.operands[static_cast<size_t>(i)].size(); ++d) {
      const Piece::Range& r = piece.range(static_cast<size_t>(i), static_cast<int>(d));
      const int f = dims[d].factor;
      if (f < 0 || r.size > 0 || r.global == 0 || rule.factors()[static_cast<size_t>(f)].inside)
        continue;
      for (int o = rule.inputs(); o < rule.operands(); ++o) {
        if (rule.has_factor(o, f)) continue;
        const Join join = rule.factors()[static_cast<size_t>(f)].join;
        const double inf = std::numeric_limits<double>::infinity();
        return join == Join::sum ? 0 : join == Join::max ? -inf : inf;
      }
    }
  }
  return {};
}

// The neutral value as a tensor; integers and bools have their ends for infinities.
Tensor neutral_tensor(const TensorMeta& y, double value) {
  const auto filled = [&](double v) { return full(y.shape, v, y.dtype, y.device); };
  if (is_floating(y.dtype) || value == 0) return filled(value);
  if (y.dtype == DType::bool_) return filled(value > 0);
  if (y.dtype == DType::u8) return filled(value > 0 ? 255 : 0);
  const Tensor lowest = filled(y.dtype == DType::i64 ? -0x1p63 : -0x1p31);
  return value < 0 ? lowest : sub(filled(-1), lowest);
}

}  // namespace

struct Planner::Impl {
  PlanCache cache;
  Counts counts;

  // `created_on`: the layout of the outputs of an op without inputs; empty otherwise.
  const OpPlan& plan(const OpRow& row, const void* op, Tensors in, Layout created_on) {
    const LayoutId on = created_on ? created_on.id() : LayoutId::none;
    const uint64_t h = PlanCache::hash(row, op, in, on);
    if (const OpPlan* hit = cache.find(h, row, op, in, on)) {
      ++counts.hits;
      return *hit;
    }
    ++counts.misses;
    auto entry = std::make_unique<PlanCache::Entry>();
    entry->hash = h;
    entry->row = &row;
    entry->created_on = on;
    entry->plan = make(row, op, in, created_on);
    entry->op = detail::copy_of(row, op);
    for (const Tensor& t : in) {
      InputKey k;
      if (t.defined()) k = {t.impl().layout, t.shape(), t.dtype(), t.device(), true};
      entry->in.push_back(k);
    }
    return cache.insert(std::move(entry));
  }

  OpPlan make(const OpRow& row, const void* op, Tensors in, Layout created_on);

  std::unordered_map<Mesh, MeshCosts> costs;  // where they are not the constants
};

OpPlan Planner::Impl::make(const OpRow& row, const void* op, Tensors in, Layout created_on) {
  const Layouts lies = layouts_of(row, in);
  const Mesh mesh = created_on ? created_on.mesh() : common_mesh(row, in, lies);
  const MetaArray metas(in);
  const MetaList made = row.meta(op, metas);
  std::vector<TensorMeta> outputs;
  for (const TensorMeta& m : made) outputs.push_back(m);

  Strategy strategy;
  std::vector<StrategyInput> inputs;
  for (size_t i = 0; i < in.size(); ++i) {
    StrategyInput s;
    if (in[i].defined()) {
      s.meta = &in[i].meta();
      if (lies[i]) s.states = lies[i].states();
      s.written = row.kind == OpKind::in_place && row.writes(i, in.size());
    }
    inputs.push_back(s);
  }
  ShardingRule rule;
  const size_t operands = in.size() + outputs.size();
  if (created_on) {
    check_fits(created_on, outputs[0].shape, row.name);
    if (created_on.has_partial())
      fail<LayoutError>(row.name, "cannot make a partial tensor ", created_on.placements_text());
    if (!created_on.is_replicated() && !row.sharding)
      fail<LayoutError>(row.name, "is not shardable: ", row.not_shardable);
    strategy.operands.assign(operands, created_on.states());
  } else if (row.sharding) {
    rule = row.sharding(op, metas);
    const auto own = costs.find(mesh);
    strategy = choose_strategy(row.name, rule, mesh, inputs, outputs, row.kind == OpKind::in_place,
                               own == costs.end() ? MeshCosts{} : own->second);
  } else {
    strategy.operands.assign(operands, AxisStates{});
    for (const StrategyInput& s : inputs) {
      if (!s.meta) continue;
      strategy.asks |= plan_redistribute(mesh, s.states, AxisStates{}).communicates();
    }
  }

  OpPlan plan;
  plan.asks = strategy.asks;
  Piece piece;
  for (size_t i = 0; i < operands; ++i) {
    const bool output = i >= in.size();
    const Layout layout = Layout::intern(mesh, strategy.operands[i]);
    std::vector<Piece::Range> ranges;
    if (output || inputs[i].meta) {
      const Shape& shape = output ? outputs[i - in.size()].shape : inputs[i].meta->shape;
      for (int d = 0; d < shape.rank(); ++d) ranges.push_back(layout.range(shape, d));
    }
    piece.operands.push_back(std::move(ranges));
    if (output) {
      TensorMeta local = outputs[i - in.size()];
      const Shape global = local.shape;
      local.shape = layout.local_shape(global);
      plan.out.push_back({local, global, layout.id()});
      continue;
    }
    OpPlan::Input p;
    if (inputs[i].meta) {
      p.target = layout;
      const Layout from = lies[i] ? lies[i] : Layout::replicated(mesh);
      if (from != layout) {
        p.moves = &detail::redistribute_plan(from, layout);
        for (const RedistributeStep& s : p.moves->steps) p.sends |= asks(s.move);
      }
    }
    plan.in.push_back(p);
  }
  if (const int inside = created_on ? -1 : rule.inside_factor(); inside >= 0) {
    for (size_t i = 0; i < in.size() && !piece.joiner; ++i) {
      const auto dims = rule.dims(static_cast<int>(i));
      for (size_t d = 0; d < dims.size(); ++d) {
        if (dims[d].factor != inside) continue;
        AxisList axes;
        for (int a : axes_of(strategy.operands[i], static_cast<int>(d))) {
          if (mesh.size(a) > 1) axes.push_back(a);
        }
        if (!axes.empty()) piece.joiner = std::make_shared<AxisJoiner>(mesh, axes);
      }
    }
  }
  plan.neutral = created_on ? std::nullopt : neutral_value(rule, piece, row.kind);
  if (plan.neutral) return plan;
  plan.local_op = detail::local_op(row, op, piece);
  // A rule and a local form that disagree would corrupt values, so the local op's shapes are
  // checked.
  std::vector<TensorMeta> local_metas(in.size());
  SmallVector<const TensorMeta*, 8> pointers;
  for (size_t i = 0; i < in.size(); ++i) {
    if (inputs[i].meta) {
      local_metas[i] = *inputs[i].meta;
      local_metas[i].shape = piece.local_shape(i);
    }
    pointers.push_back(inputs[i].meta ? &local_metas[i] : nullptr);
  }
  const MetaList local_made =
      row.meta(plan.local_op.get(), Metas(pointers.data(), pointers.size()));
  for (size_t i = 0; i < plan.out.size(); ++i) {
    if (local_made[i].shape == plan.out[i].local.shape &&
        local_made[i].dtype == plan.out[i].local.dtype)
      continue;
    fail<LayoutError>(row.name, "its local form makes ", local_made[i], " where its sharding rule ",
                      rule.text(), " expects ", plan.out[i].local, " of the global ",
                      TensorMeta{plan.out[i].global, plan.out[i].local.dtype, {}},
                      ": the room's sharding() and local() disagree");
  }
  return plan;
}

Planner::Planner() : impl_(std::make_unique<Impl>()) {}
Planner::~Planner() = default;

Planner::Counts Planner::counts() const {
  Counts c = impl_->counts;
  c.plans = impl_->cache.size();
  return c;
}

MeshCosts Planner::costs(Mesh mesh) const {
  const auto own = impl_->costs.find(mesh);
  return own == impl_->costs.end() ? MeshCosts{} : own->second;
}

void Planner::set_costs(Mesh mesh, const MeshCosts& costs) {
  impl_->costs[mesh] = costs;
  impl_->cache = {};
}

namespace {
// The recorded inputs: redistributed ones if the redistribution is recorded.
TensorList sent(const OpRow& row, const OpPlan& plan, Tensors in) {
  Context& context = Context::current();
  const bool backward = context.recorder && Tape::current().passes > 0;
  if (!backward && context.state<Wishes>().automatic == 0) refuse(row, in, plan);
  TensorList given;
  for (size_t i = 0; i < in.size(); ++i)
    given.push_back(plan.in[i].sends ? redistribute(in[i], plan.in[i].target) : in[i]);
  return given;
}
}  // namespace

TensorList Planner::arrange(const OpRow& row, const void* op, Tensors in) {
  const OpPlan& plan = impl_->plan(row, op, in, {});
  if (plan.asks) return sent(row, plan, in);
  TensorList same;
  for (const Tensor& t : in) same.push_back(t);
  return same;
}

namespace {

// Runs the op on this rank's parts, and gives its outputs' parts.
SmallVector<Tensor, 2> run_on_parts(Context& context, const OpRow& row, const void* local_op,
                                    const OpPlan& plan, Tensors in, SmallVector<Tensor, 4>& local) {
  SmallVector<Tensor, 2> made;
  switch (row.kind) {
    case OpKind::compute:
      if (__builtin_expect(plan.neutral.has_value(), false)) {
        const NoGrad guard;
        for (const OpPlan::Output& o : plan.out)
          made.push_back(neutral_tensor(o.local, *plan.neutral));
        break;
      }
      for (const OpPlan::Output& o : plan.out)
        made.push_back(empty(o.local.shape, o.local.dtype, o.local.device));
      detail::run_kernel(context, row, local_op, local, made,
                         plan.out.empty() ? kCpu : plan.out[0].local.device);
      break;
    case OpKind::view: {
      const auto geometry = [&] {
        return Geometry{local[0].shape(), local[0].strides(), local[0].offset()};
      };
      if (row.can_view && !local[0].is_contiguous() && !row.can_view(local_op, geometry())) {
        // Sharding a dim leaves gaps between rows of the shard, which merged dims cannot express.
        const NoGrad guard;
        local[0] = copy(local[0]);
      }
      const Geometry g = row.view(local_op, geometry());
      made.push_back(alias(local[0], g.shape, g.strides, g.offset));
      break;
    }
    case OpKind::in_place: {
      SmallVector<Tensor, 4> written;
      for (size_t i = 0; i < in.size(); ++i) {
        if (!row.writes(i, in.size())) continue;
        if (context.recorder) context.recorder->check_write(row, in[i]);
        if (in[i].impl().copied_view) {
          fail<InPlaceError>(
              row.name, "would write ", in[i].meta(),
              ", a view whose part had to be copied or sent: what it views would not "
              "change; write that tensor itself");
        }
        written.push_back(local[i]);
      }
      detail::run_kernel(context, row, local_op, local, written, in[0].device());
      for (const Tensor& t : written) t.storage().bump_version();
      break;
    }
  }
  return made;
}

}  // namespace

void Planner::call(const OpRow& row, const void* op, Tensors in, TensorList& out) {
  Context& context = Context::current();
  const OpPlan& plan = impl_->plan(row, op, in, {});
  const TensorImpl* source = in.empty() || !in[0].defined() ? nullptr : &in[0].impl();
  TensorList given;
  if (__builtin_expect(plan.asks, false)) {
    given = sent(row, plan, in);
    in = given;
  }
  SmallVector<Tensor, 4> local;
  for (size_t i = 0; i < in.size(); ++i) {
    const OpPlan::Input& p = plan.in[i];
    if (!in[i].defined()) {
      local.emplace_back();
      continue;
    }
    const bool plain = !in[i].is_distributed();
    if (plain && in[i].requires_grad() && context.grad_enabled)
      (void)common_mesh(row, in, layouts_of(row, in));  // throws
    const Tensor part = plain ? in[i] : Tensor(in[i].impl().local);
    // A constant is replicated: next to a partial sum it is zero on all ranks but one.
    if (!p.moves || (p.sends && !plain)) local.push_back(part);
    else
      local.push_back(
          detail::run_redistribute(*p.moves, part, in[i].shape(), p.target.mesh(), "forward"));
  }
  // The plan may come from a call with other attributes that do not decide the plan.
  const void* local_op = row.local ? plan.local_op.get() : op;
  bool gradients = false;
  for (const Tensor& t : in) gradients |= t.defined() && t.requires_grad();
  const SmallVector<Tensor, 2> made = run_on_parts(context, row, local_op, plan, in, local);
  for (size_t i = 0; i < made.size(); ++i)
    out.push_back(make_distributed(made[i], plan.out[i].global, plan.out[i].layout));
  if (row.kind == OpKind::view)
    out[0].impl().copied_view =
        in[0].impl().copied_view || out[0].impl().storage != source->storage;
  if (gradients && context.grad_enabled && context.recorder && row.kind != OpKind::in_place)
    context.recorder->record(row, op, in, out);
  if (__builtin_expect(context.options.anomaly, false)) detail::find_nan(context, row, local, made);
  if (__builtin_expect(static_cast<bool>(context.op_hook), false))
    context.op_hook(row, op, in, out);
}

Tensor Planner::settle(const Tensor& gradient, const Tensor& leaf) {
  const Layout from = detail::layout_of(gradient, "backward"),
               wanted = detail::layout_of(leaf, "backward");
  if (from.mesh() != wanted.mesh()) return gradient;
  using Kind = Placement::Kind;
  AxisStates states = from.states();
  std::array<std::array<bool, kMaxAxes>, kMaxRank> taken{};  // by dim and position
  std::array<size_t, kMaxRank> cuts{};
  for (size_t a = 0; a < states.size(); ++a) {
    if (states[a].placement.kind == Kind::replicate &&
        wanted.states()[a].placement.kind == Kind::shard)
      states[a] = wanted.states()[a];
    if (states[a].placement.kind != Kind::shard) continue;
    const auto dim = static_cast<size_t>(states[a].placement.dim);
    bool& place = taken[dim][static_cast<size_t>(states[a].position)];
    if (std::exchange(place, true)) return gradient;  // it has its own order of axes
    ++cuts[dim];
  }
  for (size_t d = 0; d < kMaxRank; ++d) {
    if (std::count(taken[d].begin(), taken[d].begin() + static_cast<std::ptrdiff_t>(cuts[d]),
                   false))
      return gradient;
  }
  const Layout to = Layout::intern(from.mesh(), states);
  if (to == from || detail::redistribute_plan(from, to).communicates()) return gradient;
  return redistribute(gradient, to);
}

Tensor Planner::whole(const Tensor& x) { return detail::gather_whole(x); }

std::string Planner::layout_text(const Tensor& x) { return detail::layout_of(x, "print").text(); }

void Planner::create(const OpRow& row, const void* op, Layout layout, TensorList& out) {
  Context& context = Context::current();
  const OpPlan& plan = impl_->plan(row, op, {}, layout);
  SmallVector<Tensor, 2> made;
  for (const OpPlan::Output& o : plan.out)
    made.push_back(empty(o.local.shape, o.local.dtype, o.local.device));
  detail::run_kernel(context, row, plan.local_op.get(), {}, made, plan.out[0].local.device);
  for (size_t i = 0; i < made.size(); ++i)
    out.push_back(make_distributed(made[i], plan.out[i].global, plan.out[i].layout));
}

void Planner::call_like(const OpRow& row, const void* op, const Tensor& like, TensorList& out) {
  create(row, op, detail::layout_of(like, row.name).without_partials(), out);
}

AutoRedistribute::AutoRedistribute() : context_(Context::current()) {
  ++context_.state<Wishes>().automatic;
}
AutoRedistribute::~AutoRedistribute() { --context_.state<Wishes>().automatic; }

}  // namespace tessera
