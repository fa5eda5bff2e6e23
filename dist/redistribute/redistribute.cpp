// SPDX-License-Identifier: Apache-2.0
// Runs the moves of a plan on this rank's local tensor. Collectives use concatenated chunks, so
// shards of an inner dim are packed before and unpacked after; shards of the outermost dim need
// neither.
#include "tessera/dist/redistribute/redistribute.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/context.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"

#include <unordered_map>

namespace tessera {
namespace {

using Ranges = std::vector<Piece::Range>;

// The range of `dim` of each member of the step's group under `states`.
Ranges member_ranges(Mesh mesh, const RedistributeStep& step, const AxisStates& states,
                     const Shape& global, int dim) {
  Ranges ranges;
  for_each_member(mesh, step.axes, [&](std::span<const int> at) {
    ranges.push_back(range_of(mesh, states, at, global, dim));
  });
  return ranges;
}

struct Blocks {  // sizes around a dim, and whether all its chunks are equal
  int64_t outer = 1, inner = 1;
  bool even = true;
  Blocks(const Shape& shape, int dim, const Ranges& parts) {
    for (int d = 0; d < dim; ++d) outer *= shape[d];
    for (int d = dim + 1; d < shape.rank(); ++d) inner *= shape[d];
    for (const Piece::Range& r : parts) even &= r.size == parts[0].size;
  }
};

Shape sized(Shape shape, int dim, int64_t size) {
  shape[dim] = size;
  return shape;
}

// The chunks of x along `dim`, flattened and concatenated.
Tensor pack(const Tensor& x, int dim, const Ranges& parts) {
  const Blocks b(x.shape(), dim, parts);
  const auto n = static_cast<int64_t>(parts.size());
  if (b.outer == 1 || x.numel() == 0) return reshape(contiguous(x), {x.numel()});
  if (b.even) {
    const Tensor cut = reshape(x, {b.outer, n, parts[0].size * b.inner});
    return reshape(contiguous(permute(cut, {1, 0, 2})), {x.numel()});
  }
  std::vector<Tensor> flat;
  for (const Piece::Range& r : parts) {
    const int64_t begin = r.begin - parts[0].begin;
    const Tensor part = slice(x, dim, {begin, begin + r.size});
    flat.push_back(reshape(contiguous(part), {part.numel()}));
  }
  return cat(flat);
}

// The inverse: from flattened chunks to chunks along `dim`.
Tensor unpack(const Tensor& flat, const Shape& part, int dim, const Ranges& parts) {
  const Blocks b(part, dim, parts);
  const auto n = static_cast<int64_t>(parts.size());
  int64_t whole = 0;
  for (const Piece::Range& r : parts) whole += r.size;
  const Shape shape = sized(part, dim, whole);
  if (b.outer == 1 || flat.numel() == 0) return reshape(flat, shape);
  if (b.even) {
    const Tensor cut = reshape(flat, {n, b.outer, parts[0].size * b.inner});
    return reshape(contiguous(permute(cut, {1, 0, 2})), shape);
  }
  std::vector<Tensor> aliases;
  int64_t offset = 0;
  for (const Piece::Range& r : parts) {
    const Shape s = sized(part, dim, r.size);
    aliases.push_back(alias(flat, s, contiguous_strides(s), offset));
    offset += s.numel();
  }
  return cat(aliases, dim);
}

Counts counts_of(const Ranges& parts, int64_t per_row) {
  Counts counts;
  for (const Piece::Range& r : parts) counts.push_back(r.size * per_row);
  return counts;
}

CollectiveKind collective_of(Move move) {
  switch (move) {
    case Move::all_reduce: return CollectiveKind::all_reduce;
    case Move::reduce_scatter: return CollectiveKind::reduce_scatter;
    case Move::all_to_all: return CollectiveKind::all_to_all;
    default: return CollectiveKind::all_gather;
  }
}

class Runner {
 public:
  Runner(const Tensor& local, const Shape& global, Mesh mesh, std::string_view tag)
      : x_(local),
        source_(local),
        global_(global),
        mesh_(mesh),
        tag_(tag),
        stream_(Context::current().stream(local.device())) {}

  Tensor run(const RedistributePlan& plan) {
    for (const RedistributeStep& step : plan.steps) {
      switch (step.move) {
        case Move::slice: slice_own(step); break;
        case Move::zero: zero(step); break;
        case Move::pad: pad(step); break;
        case Move::all_gather: all_gather(step); break;
        case Move::all_reduce: all_reduce(step); break;
        case Move::reduce_scatter: reduce_scatter(step); break;
        case Move::all_to_all: all_to_all(step); break;
      }
    }
    return x_;
  }

 private:
  [[nodiscard]] Piece::Range own(const AxisStates& states, int dim) const {
    return range_of(mesh_, states, mesh_.coordinates(), global_, dim);
  }
  [[nodiscard]] bool first(const RedistributeStep& step) const {
    for (int a : step.axes) {
      if (mesh_.coordinate(a) != 0) return false;
    }
    return true;
  }
  ProcessGroup& group(const RedistributeStep& step) {
    return mesh_.group(std::span<const int>(step.axes.data(), step.axes.size()));
  }
  void trace(const RedistributeStep& step, const Tensor& payload) {
    record_collective(collective_of(step.move), mesh_,
                      std::span<const int>(step.axes.data(), step.axes.size()), payload, tag_);
  }

  void slice_own(const RedistributeStep& step) {
    const auto before = own(step.before, step.to_dim), after = own(step.after, step.to_dim);
    const int64_t begin = after.begin - before.begin;
    x_ = slice(x_, step.to_dim, {begin, begin + after.size});
  }
  void zero(const RedistributeStep& step) {
    if (step.op == ReduceOp::sum && !first(step)) x_ = zeros_like(x_);
  }
  void pad(const RedistributeStep& step) {
    const auto before = own(step.before, step.from_dim), after = own(step.after, step.from_dim);
    x_ = call(op::SlicePad{step.from_dim, before.begin - after.begin, 1, after.size}, {x_});
  }
  void all_gather(const RedistributeStep& step) {
    const int d = step.from_dim;
    const Ranges parts = member_ranges(mesh_, step, step.before, global_, d);
    const Shape part = x_.shape();
    const int64_t per_row = sized(part, d, 1).numel(), rows = own(step.after, d).size;
    const Tensor flat = empty({rows * per_row}, x_.dtype(), x_.device());
    trace(step, flat);
    group(step).all_gather(contiguous(x_), flat, counts_of(parts, per_row))->wait_on(stream_);
    x_ = unpack(flat, part, d, parts);
  }
  void all_reduce(const RedistributeStep& step) {
    // In place, so never on bytes of the input tensor: a slice may be a view.
    const Tensor y = x_.impl().storage == source_.impl().storage ? copy(x_) : contiguous(x_);
    trace(step, y);
    group(step).all_reduce(y, step.op)->wait_on(stream_);
    x_ = y;
  }
  void reduce_scatter(const RedistributeStep& step) {
    const int d = step.to_dim;
    const Ranges parts = member_ranges(mesh_, step, step.after, global_, d);
    const int64_t per_row = sized(x_.shape(), d, 1).numel();
    const Tensor y = empty(sized(x_.shape(), d, own(step.after, d).size), x_.dtype(), x_.device());
    const Tensor flat = pack(x_, d, parts);
    trace(step, flat);
    group(step).reduce_scatter(flat, y, step.op, counts_of(parts, per_row))->wait_on(stream_);
    x_ = y;
  }
  void all_to_all(const RedistributeStep& step) {
    const int f = step.from_dim, d = step.to_dim;
    const Ranges from = member_ranges(mesh_, step, step.before, global_, f);
    const Ranges to = member_ranges(mesh_, step, step.after, global_, d);
    const Shape part = sized(x_.shape(), d, own(step.after, d).size);
    const int64_t row = sized(part, f, 1).numel(), rows = own(step.after, f).size;
    const Tensor flat = empty({rows * row}, x_.dtype(), x_.device());
    const Tensor packed = pack(x_, d, to);
    trace(step, packed);
    group(step)
        .all_to_all(packed, flat, counts_of(to, sized(x_.shape(), d, 1).numel()),
                    counts_of(from, row))
        ->wait_on(stream_);
    x_ = unpack(flat, part, f, from);
  }

  Tensor x_;
  const Tensor& source_;
  const Shape& global_;
  Mesh mesh_;
  std::string_view tag_;
  const Stream stream_;  // on a device, its kernels wait for a collective, and this thread goes on
};

struct PlanTable {
  struct Hash {
    size_t operator()(const std::pair<LayoutId, LayoutId>& p) const {
      return static_cast<size_t>(p.first) * 0x9E3779B97F4A7C15ull ^ static_cast<size_t>(p.second);
    }
  };
  std::unordered_map<std::pair<LayoutId, LayoutId>, RedistributePlan, Hash> plans;
};

// The target layout of the gradient of a redistribution, given its layout.
Layout gradient_layout(Layout source, Layout arriving) {
  AxisStates states = source.states();
  for (size_t a = 0; a < states.size(); ++a) {
    if (states[a].placement.kind == Placement::Kind::shard) continue;
    const bool keeps = states[a].placement.kind == Placement::Kind::replicate &&
                       arriving.states()[a].placement.kind == Placement::Kind::partial;
    states[a] = keeps ? arriving.states()[a] : AxisState{};
  }
  return Layout::intern(source.mesh(), states);
}

// Redistributed, with its own bytes.
Tensor fresh(const Tensor& x, Layout to) {
  Tensor y = detail::redistribute_unrecorded(x, to, trace_tag());
  const Tensor part(y.impl().local);
  if (part.impl().storage != x.impl().storage && part.is_contiguous()) return y;
  return make_distributed(copy(part), y.shape(), to);
}

}  // namespace

namespace detail {

const RedistributePlan& redistribute_plan(Layout from, Layout to) {
  auto& plans = Context::current().state<PlanTable>().plans;
  const auto [at, fresh] = plans.try_emplace({from.id(), to.id()});
  if (fresh) at->second = plan_redistribute(from.mesh(), from.states(), to.states());
  return at->second;
}

Tensor run_redistribute(const RedistributePlan& plan, const Tensor& local, const Shape& global,
                        Mesh mesh, std::string_view tag) {
  const NoGrad guard;
  return Runner(local, global, mesh, tag).run(plan);
}

Tensor redistribute_unrecorded(const Tensor& x, Layout to, std::string_view tag) {
  if (x.impl().layout == to.id()) return x;
  const Layout from = detail::layout_of(x, "redistribute");
  const Tensor part = run_redistribute(redistribute_plan(from, to), Tensor(x.impl().local),
                                       x.shape(), to.mesh(), tag);
  return make_distributed(part, x.shape(), to);
}

Tensor lying_on(const Tensor& x, Mesh mesh) {
  if (x.is_distributed()) return x;
  if (x.rank() > 0) {
    fail<LayoutError>("backward", "the gradient ", x.meta(), " is plain, but its tensor is on ",
                      mesh.text(), ": distribute() it");
  }
  return make_distributed(x, x.shape(), Layout::replicated(mesh));
}

}  // namespace detail

Tensor redistribute(const Tensor& x, Layout to) {
  if (x.impl().layout == to.id()) return x;
  const Layout from = detail::layout_of(x, "redistribute");
  if (!from) {
    fail<LayoutError>("redistribute", x.meta(),
                      " is plain, not distributed: make it distributed by distribute(x, layout)");
  }
  if (from.mesh() != to.mesh()) {
    fail<LayoutError>("redistribute", x.meta(), " lies on ", from.mesh().text(),
                      ", the new layout on ", to.mesh().text(),
                      ": both must be on one mesh; go by full_tensor() and distribute()");
  }
  check_fits(to, x.shape(), "redistribute");
  for (const AxisState& s : to.states()) {
    if (s.placement == Partial(ReduceOp::avg) && !is_floating(x.dtype()))
      fail<DTypeError>("redistribute", x.meta(),
                       " cannot be an average: integers are never divided");
  }
  if (!x.requires_grad() || !Context::current().grad_enabled) {
    const NoGrad guard;
    return fresh(x, to);
  }
  const Function function{
      "redistribute", [to](FunctionContext&, Tensors in) { return TensorList{fresh(in[0], to)}; },
      [from](FunctionContext&, const Grads& dy) {
        if (!dy[0].defined()) return Grads{};
        const Tensor g = detail::lying_on(dy[0], from.mesh());
        return Grads{redistribute(g, gradient_layout(from, detail::layout_of(g, "backward")))};
      }};
  return apply(function, {x})[0];
}

Tensor redistribute(const Tensor& x, std::initializer_list<Placement> placements) {
  const Layout from = detail::layout_of(x, "redistribute");
  if (!from) fail<LayoutError>("redistribute", x.meta(), " is plain: distribute(x, layout) first");
  return redistribute(x, Layout::of(from.mesh(), placements));
}

Tensor detail::gather_whole(const Tensor& x) {
  const NoGrad guard;
  const Layout everywhere = Layout::replicated(layout_of(x, "full_tensor").mesh());
  if (x.impl().layout == everywhere.id()) return copy(Tensor(x.impl().local));
  return Tensor(redistribute(x.detach(), everywhere).impl().local).detach();
}

}  // namespace tessera
