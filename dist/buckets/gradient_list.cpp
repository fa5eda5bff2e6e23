// SPDX-License-Identifier: Apache-2.0
#include "tessera/dist/buckets/gradient_list.h"

#include "tessera/core/scopes.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/redistribute/redistribute.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <algorithm>

namespace tessera {
namespace {

// Gradients that lack the sum over the same axes.
struct Together {
  Layout layout;  // says which mesh
  std::vector<int> axes;
  std::vector<size_t> places;  // in the list
};

// The axes of size above 1 over which `from` is a sum to be made and `to` is not.
std::vector<int> unsummed_axes(Layout from, Layout to) {
  std::vector<int> axes;
  for (int a = 0; a < to.mesh().axes(); ++a) {
    if (to.mesh().size(a) > 1 && from.placement(a) == Partial() && to.placement(a) == Replicate())
      axes.push_back(a);
  }
  return axes;
}

void sum_together(const Together& group, std::vector<Tensor>& parts, DType sum) {
  int64_t total = 0;
  for (const size_t i : group.places) total += parts[i].numel();
  const Tensor flat = empty({total}, sum, parts[group.places[0]].device());
  int64_t at = 0;
  for (const size_t i : group.places) {
    const Shape shape = parts[i].shape();
    const Tensor place = alias(flat, shape, contiguous_strides(shape), at);
    assign_(place, parts[i]);
    parts[i] = place;
    at += shape.numel();
  }
  const Mesh mesh = group.layout.mesh();
  record_collective(CollectiveKind::all_reduce, mesh, group.axes, flat, trace_tag());
  mesh.group(group.axes).all_reduce(flat);
}

}  // namespace

std::vector<Tensor> bring_gradients(std::span<const Tensor> gradients,
                                    std::span<const Layout> layouts, DType sum) {
  const NoGrad guard;
  std::vector<Tensor> parts(gradients.size());
  std::vector<Together> groups;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const Layout from = detail::layout_of(gradients[i], "gradients");
    Layout to = layouts[i];
    const std::vector<int> axes = unsummed_axes(from, to);
    for (const int a : axes) to = to.with(to.mesh().axis(a).name, Partial());
    parts[i] = Tensor(gradients[i].impl().local);
    if (from != to) {
      const Tensor wide = parts[i].dtype() == sum ? parts[i] : cast(parts[i], sum);
      parts[i] = detail::run_redistribute(detail::redistribute_plan(from, to), wide,
                                          gradients[i].shape(), to.mesh(), trace_tag());
    }
    if (axes.empty()) continue;
    auto group = std::ranges::find(groups, axes, &Together::axes);
    if (group == groups.end()) group = groups.insert(group, {to, axes, {}});
    group->places.push_back(i);
  }
  for (const Together& group : groups) sum_together(group, parts, sum);
  return parts;
}

}  // namespace tessera
