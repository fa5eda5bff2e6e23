// SPDX-License-Identifier: Apache-2.0
// Regions and their conversions. A conversion is a redistribution over one axis, and its gradient
// is the redistribution between the gradients' types, so the table needs no separate cases.
#include "tessera/dist/local_region.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/message.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/redistribute/redistribute.h"
#include "tessera/kernels/fill/fill.h"

#include <numeric>
#include <ostream>

namespace tessera {

std::ostream& operator<<(std::ostream& os, AxisType t) {
  constexpr std::string_view names[] = {"replicate", "invariant", "varying", "partial"};
  return os << names[static_cast<size_t>(t)];
}

namespace {

using Kind = Placement::Kind;

void check_types(Layout layout, const std::vector<AxisType>& types, std::string_view what,
                 size_t index) {
  const Mesh mesh = layout.mesh();
  if (static_cast<int>(types.size()) != mesh.axes()) {
    fail<LayoutError>("local_region", what, ' ', index, " states ", types.size(), " types for ",
                      mesh.text(), ": state one per axis");
  }
  for (int a = 0; a < mesh.axes(); ++a) {
    const AxisType t = types[static_cast<size_t>(a)];
    const Kind kind = layout.placement(a).kind;
    const bool fits = kind == Kind::shard ? t == AxisType::varying
                      : kind == Kind::partial
                          ? t == AxisType::partial && layout.placement(a) == Partial()
                          : t == AxisType::replicate || t == AxisType::invariant;
    if (fits) continue;
    fail<LayoutError>("local_region", what, ' ', index, " is ", layout.placement(a), " on axis \"",
                      mesh.axis(a).name, "\", but its type is stated as ", t, "; expected ",
                      kind == Kind::shard ? "varying"
                      : kind == Kind::partial
                          ? "partial, of a sum (reduce averages and extremes first)"
                          : "replicate (its gradient is partial) or invariant "
                            "(its gradient is equal on all ranks)");
  }
}

// The layout of the gradient of a value with layout `layout` and these types.
Layout gradient_layout(Layout layout, const std::vector<AxisType>& types) {
  AxisStates states = layout.states();
  for (size_t a = 0; a < states.size() && a < types.size(); ++a) {
    if (types[a] == AxisType::varying) continue;
    states[a] = {};
    if (types[a] == AxisType::replicate) states[a].placement = Partial();
  }
  return Layout::intern(layout.mesh(), states);
}

// Entering and leaving a region are each other's transpose, so gradients of gradients work too.
Tensor wrap(const Tensor& part, Layout layout, const Shape& global, Layout gradient);

// This rank's local tensor of x, whose gradient is a shard of a tensor with layout `gradient`.
Tensor unwrap(const Tensor& x, Layout gradient) {
  const Function function{
      "local_region.input",
      [](FunctionContext&, Tensors in) { return TensorList{Tensor(in[0].impl().local).detach()}; },
      [gradient, layout = detail::layout_of(x, "local_region"), shape = x.shape()](
          FunctionContext&, const Grads& dy) {
        if (!dy[0].defined()) return Grads{};
        return Grads{wrap(dy[0], gradient, shape, layout)};
      }};
  return apply(function, {x})[0];
}

Tensor wrap(const Tensor& part, Layout layout, const Shape& global, Layout gradient) {
  const Function function{"local_region.output",
                          [layout, global](FunctionContext&, Tensors in) {
                            return TensorList{make_distributed(in[0].detach(), global, layout)};
                          },
                          [layout, gradient](FunctionContext&, const Grads& dy) {
                            if (!dy[0].defined()) return Grads{};
                            const Tensor g =
                                redistribute(detail::lying_on(dy[0], gradient.mesh()), gradient);
                            return Grads{unwrap(g, layout)};
                          }};
  return apply(function, {part})[0];
}

Tensor leave(const Tensor& part, const RegionOutput& out, size_t index) {
  if (part.is_distributed())
    fail<LayoutError>("local_region", "output ", index,
                      " is distributed; fn must return local tensors");
  const Shape expected = out.layout.local_shape(out.global);
  if (!(part.shape() == expected)) {
    fail<LayoutError>("local_region", "output ", index, " is ", part.meta(), ", but ",
                      out.layout.text(), " of ", out.global, " gives this rank ", expected);
  }
  return wrap(part, out.layout, out.global, gradient_layout(out.layout, out.types));
}

Placement placement_of(AxisType type, int dim) {
  return type == AxisType::varying   ? Shard(dim)
         : type == AxisType::partial ? Partial()
                                     : Replicate();
}

// Input and output type of a value on one axis, and the sharded dims.
struct Conversion {
  AxisType from, to;
  int from_dim, to_dim;
  // The gradient is converted back between the types of gradients.
  [[nodiscard]] Conversion transposed() const {
    return {gradient_type(to), gradient_type(from), to_dim, from_dim};
  }
};

Tensor converted(const Tensor& x, Mesh line, const Conversion& c, const Shape& whole) {
  const Function function{
      "convert",
      [=](FunctionContext&, Tensors in) {
        const Layout source = Layout::of(line, {placement_of(c.from, c.from_dim)});
        const Layout target = Layout::of(line, {placement_of(c.to, c.to_dim)});
        return TensorList{detail::run_redistribute(detail::redistribute_plan(source, target), in[0],
                                                   whole, line, trace_tag())
                              .detach()};
      },
      [=](FunctionContext&, const Grads& dy) {
        if (!dy[0].defined()) return Grads{};
        return Grads{converted(dy[0], line, c.transposed(), whole)};
      }};
  return apply(function, {x})[0];
}

// Global size of a sharded dim: the sum over the ranks of the axis, which must follow the chunk
// rule. Every rank gets all sizes, so either all throw or none.
int64_t whole_size(const Tensor& x, int dim, Mesh line) {
  ProcessGroup& group = line.group(0);
  const Tensor mine = full({1}, static_cast<double>(x.shape()[dim]), DType::i64);
  const Tensor all = empty({line.size(0)}, DType::i64);
  group.all_gather(mine, all)->wait();
  const std::span<const int64_t> sizes(all.data<int64_t>(), static_cast<size_t>(line.size(0)));
  const int64_t whole = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  for (int r = 0; r < line.size(0); ++r) {
    const int64_t expected = chunk({0, whole, whole}, line.size(0), r).size;
    if (sizes[static_cast<size_t>(r)] == expected) continue;
    fail<LayoutError>("convert", "the part of rank ", line.ranks()[static_cast<size_t>(r)], " has ",
                      sizes[static_cast<size_t>(r)], " of the ", counted(whole, "element"),
                      " of dim ", dim, ", the chunk rule gives it ", expected);
  }
  return whole;
}

}  // namespace

std::vector<Tensor> local_region(
    const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& fn,
    const std::vector<RegionInput>& inputs, const std::vector<RegionOutput>& outputs) {
  std::vector<Tensor> parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& x = inputs[i].x;
    if (!x.is_distributed()) {
      fail<LayoutError>("local_region", "input ", i, ", ", x.meta(),
                        ", is plain: capture it in fn, or distribute it");
    }
    const Layout layout = detail::layout_of(x, "local_region");
    check_types(layout, inputs[i].types, "input", i);
    parts.push_back(unwrap(x, gradient_layout(layout, inputs[i].types)));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    check_fits(outputs[i].layout, outputs[i].global, "local_region");
    check_types(outputs[i].layout, outputs[i].types, "output", i);
  }
  const std::vector<Tensor> made = fn(parts);
  if (made.size() != outputs.size()) {
    fail<LayoutError>("local_region", "fn gave ", counted(made.size(), "tensor"),
                      ", expected one for each of ", counted(outputs.size(), "output"));
  }
  std::vector<Tensor> result;
  for (size_t i = 0; i < made.size(); ++i) result.push_back(leave(made[i], outputs[i], i));
  return result;
}

Tensor convert(const Tensor& x, Mesh mesh, std::string_view axis, AxisType from, AxisType to,
               const ConvertOptions& o) {
  if (x.is_distributed())
    fail<LayoutError>("convert", x.meta(),
                      " is distributed; inside a region values are local parts");
  const bool varying_both = from == AxisType::varying && to == AxisType::varying;
  if ((from == to && !varying_both) || (from == AxisType::invariant && to == AxisType::partial)) {
    fail<LayoutError>("convert", from, " to ", to, " over \"", axis,
                      "\" is not in the table: it would have no gradient of one meaning");
  }
  const int to_dim = varying_both ? normalize_dim(o.to_dim, x.rank(), "convert")
                                  : normalize_dim(o.dim, x.rank(), "convert");
  const int dim = normalize_dim(o.dim, x.rank(), "convert");
  const Mesh line = mesh.slice({axis});
  Shape whole = x.shape();
  if (from == AxisType::varying) {
    whole[dim] = o.whole >= 0 ? o.whole : whole_size(x, dim, line);
    const int64_t expected =
        chunk({0, whole[dim], whole[dim]}, line.size(0), line.coordinate(0)).size;
    if (expected != x.shape()[dim]) {
      fail<LayoutError>("convert", "this rank's part ", x.meta(), " of dim ", dim, " with ",
                        whole[dim], " in all should have ", expected, " by the chunk rule");
    }
  }
  return converted(x, line, {from, to, dim, to_dim}, whole);
}

}  // namespace tessera
