// SPDX-License-Identifier: Apache-2.0
// Regions and their conversions. A conversion is a redistribution over one axis, and its gradient is
// the redistribution between the gradients' types, so the table needs no case of its own.
#include "tessera/dist/local_region.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/redistribute/redistribute.h"

#include <ostream>

namespace tessera {

std::ostream& operator<<(std::ostream& os, AxisType t) {
  constexpr std::string_view names[] = {"replicate", "invariant", "varying", "partial"};
  return os << names[static_cast<size_t>(t)];
}

namespace {

using Kind = Placement::Kind;

void check_types(const Layout& layout, const std::vector<AxisType>& types, std::string_view what,
                 size_t index) {
  const Mesh& mesh = *layout.mesh();
  if (static_cast<int>(types.size()) != mesh.axes()) {
    fail<LayoutError>("local_region", what, ' ', index, " states ", types.size(), " types for ",
                      mesh.text(), ": state one per axis");
  }
  for (int a = 0; a < mesh.axes(); ++a) {
    const AxisType t = types[static_cast<size_t>(a)];
    const Kind kind = layout.placement(a).kind;
    const bool fits = kind == Kind::shard     ? t == AxisType::varying
                      : kind == Kind::partial ? t == AxisType::partial
                                              : t == AxisType::replicate || t == AxisType::invariant;
    if (fits) continue;
    fail<LayoutError>("local_region", what, ' ', index, " is ", layout.placement(a), " on axis \"",
                      mesh.axis(a).name, "\", but its type is stated as ", t, "; expected ",
                      kind == Kind::shard     ? "varying"
                      : kind == Kind::partial ? "partial"
                                              : "replicate (its gradient is partial) or invariant "
                                                "(its gradient is equal on all ranks)");
  }
}

// The layout of the gradient of a value that lies as `layout` and has these types.
const Layout* gradient_layout(const Layout* layout, const std::vector<AxisType>& types) {
  AxisStates states = layout->states();
  for (size_t a = 0; a < states.size() && a < types.size(); ++a) {
    if (types[a] == AxisType::varying) continue;
    states[a] = {};
    if (types[a] == AxisType::replicate) states[a].placement = Partial();
  }
  return Layout::intern(layout->mesh(), states);
}

Tensor enter(const Tensor& x, const std::vector<AxisType>& types) {
  const Layout* gradient = gradient_layout(x.impl().layout, types);
  const Function function{
      "local_region.input",
      [](FunctionContext&, Tensors in) {
        return TensorList{Tensor(in[0].impl().local).detach()};
      },
      [gradient, shape = x.shape()](FunctionContext&, const Grads& dy) {
        if (!dy[0].defined()) return Grads{};
        return Grads{make_distributed(dy[0], shape, gradient)};
      }};
  return apply(function, {x})[0];
}

Tensor leave(const Tensor& part, const RegionOutput& out, size_t index) {
  if (part.is_distributed())
    fail<LayoutError>("local_region", "output ", index, " is distributed; fn gives local parts");
  const Shape expected = out.layout->local_shape(out.global);
  if (!(part.shape() == expected)) {
    fail<LayoutError>("local_region", "output ", index, " is ", part.meta(), ", but ",
                      out.layout->text(), " of ", out.global, " gives this rank ", expected);
  }
  const Layout* gradient = gradient_layout(out.layout, out.types);
  const Function function{
      "local_region.output",
      [layout = out.layout, global = out.global](FunctionContext&, Tensors in) {
        return TensorList{make_distributed(in[0].detach(), global, layout)};
      },
      [gradient](FunctionContext&, const Grads& dy) {
        if (!dy[0].defined()) return Grads{};
        const Tensor lying =
            redistribute(detail::lying_on(dy[0], gradient->mesh()), gradient);
        return Grads{Tensor(lying.impl().local).detach()};
      }};
  return apply(function, {part})[0];
}

Placement placement_of(AxisType type, int dim) {
  return type == AxisType::varying   ? Shard(dim)
         : type == AxisType::partial ? Partial()
                                     : Replicate();
}

Tensor run_single(const Tensor& x, const Mesh* mesh, Placement from, Placement to,
                  const Shape& whole) {
  const Layout* source = Layout::of(mesh, {from});
  const Layout* target = Layout::of(mesh, {to});
  if (source == target) return x;
  return detail::run_redistribute(detail::redistribute_plan(source, target), x, whole, *mesh,
                                  Tape::current().passes > 0 ? "grad" : "forward");
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
    check_types(*x.impl().layout, inputs[i].types, "input", i);
    parts.push_back(enter(x, inputs[i].types));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    check_fits(*outputs[i].layout, outputs[i].global, "local_region");
    check_types(*outputs[i].layout, outputs[i].types, "output", i);
  }
  const std::vector<Tensor> made = fn(parts);
  if (made.size() != outputs.size()) {
    fail<LayoutError>("local_region", "fn gave ", made.size(), " tensors, but ", outputs.size(),
                      " outputs are stated");
  }
  std::vector<Tensor> result;
  for (size_t i = 0; i < made.size(); ++i) result.push_back(leave(made[i], outputs[i], i));
  return result;
}

Tensor convert(const Tensor& x, const Mesh* mesh, std::string_view axis, AxisType from, AxisType to,
               const ConvertOptions& o) {
  if (x.is_distributed())
    fail<LayoutError>("convert", x.meta(), " is distributed; inside a region values are local parts");
  const bool varying_both = from == AxisType::varying && to == AxisType::varying;
  if ((from == to && !varying_both) || (from == AxisType::invariant && to == AxisType::partial)) {
    fail<LayoutError>("convert", from, " to ", to, " over \"", axis,
                      "\" is not in the table: it would have no gradient of one meaning");
  }
  const int to_dim = varying_both ? normalize_dim(o.to_dim, x.rank(), "convert")
                                  : normalize_dim(o.dim, x.rank(), "convert");
  const int dim = normalize_dim(o.dim, x.rank(), "convert");
  const Mesh* line = mesh->slice({axis});
  Shape whole = x.shape();
  if (from == AxisType::varying) {
    whole[dim] = o.whole >= 0 ? o.whole : whole[dim] * line->size(0);
    const int64_t expected =
        chunk({0, whole[dim], whole[dim]}, line->size(0), line->coordinate(0)).size;
    if (expected != x.shape()[dim]) {
      fail<LayoutError>("convert", "this rank's part ", x.meta(), " of dim ", dim, " with ",
                        whole[dim], " in all should have ", expected, " by the chunk rule");
    }
  }
  const Placement p = placement_of(from, dim), q = placement_of(to, to_dim);
  const Placement dp = placement_of(gradient_type(from), dim),
                  dq = placement_of(gradient_type(to), to_dim);
  const Function function{
      "convert",
      [=](FunctionContext&, Tensors in) { return TensorList{run_single(in[0], line, p, q, whole).detach()}; },
      [=](FunctionContext&, const Grads& dy) {
        if (!dy[0].defined()) return Grads{};
        return Grads{run_single(dy[0], line, dq, dp, whole)};
      }};
  return apply(function, {x})[0];
}

}  // namespace tessera
