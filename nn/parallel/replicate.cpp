// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/parallel/replicate.h"

#include "tessera/core/message.h"
#include "tessera/dist/dtensor.h"
#include "tessera/nn/parallel/wrap_impl.h"

#include <algorithm>

namespace tessera::nn {
namespace {

// The axes of `mesh` over which a parameter is sharded, in mesh order.
std::vector<std::string> cut_axes(const std::vector<detail::Unit::Slot>& slots, Mesh mesh) {
  std::vector<std::string> names;
  for (int a = 0; a < mesh.axes(); ++a) {
    const std::string& name = mesh.axis(a).name;
    const bool cut = std::ranges::any_of(slots, [&](const detail::Unit::Slot& s) {
      if (!s.parameter.is_distributed()) return false;
      const Layout layout = layout_of(s.parameter);
      return layout.mesh().has(name) && layout.placement(name).kind == Placement::Kind::shard;
    });
    if (cut) names.push_back(name);
  }
  return names;
}

}  // namespace

void replicate(std::span<Module* const> modules, Mesh mesh, const std::string& axis,
               const ReplicatePolicy& policy) {
  const std::string pass = "replicate";
  detail::check_dtypes(pass, policy.precision);
  const Bucket::Axes axes{{}, {axis}};
  detail::Faults faults(pass);
  if (modules.empty()) faults.add("no module is given");
  try {
    (void)mesh.axes_named(axis);
  } catch (const LayoutError& error) {
    faults.add(error.what());
  }
  detail::find_wrapped(faults, modules);
  faults.raise();
  detail::FreeMembers members = detail::free_members(modules);
  (void)detail::find_taken(faults, members.slots);
  const std::vector<std::string> cut = cut_axes(members.slots, mesh);
  for (const int a : mesh.axes_named(axis)) {
    if (std::ranges::find(cut, mesh.axis(a).name) != cut.end())
      faults.add("a parameter is cut over ", mesh.axis(a).name, " already, expected Replicate");
  }
  for (const auto& s : members.slots) {
    if (s.parameter.is_distributed() && layout_of(s.parameter).mesh() != mesh)
      faults.add(s.name, " lies on ", layout_of(s.parameter).mesh().text(), ", expected ",
                 mesh.text());
  }
  faults.raise();
  std::vector<std::string_view> names{axis};
  names.insert(names.end(), cut.begin(), cut.end());
  const Mesh stored = mesh.slice(names);
  for (auto& s : members.slots) {
    detail::lie_on(s.parameter, s.parameter.is_distributed()
                                    ? detail::carried_to(stored, layout_of(s.parameter))
                                    : Layout::replicated(stored));
  }
  for (Tensor* b : members.buffers) {
    if (!b->is_distributed()) detail::lie_on(*b, Layout::replicated(mesh));
  }
  Bucket::connect(stored, axes);
  const Accumulation accumulation =
      policy.accumulation == Accumulation::replicas ? Accumulation::whole : policy.accumulation;
  detail::wrap({modules.begin(), modules.end()}, std::move(members),
               detail::options_of(pass, policy.precision, Reshard::never, mesh),
               [=](std::vector<Tensor> parameters) {
                 return std::make_unique<detail::BucketParameters>(
                     std::move(parameters), mesh, axes,
                     Bucket::Policy{policy.precision.param, policy.precision.reduce}, accumulation);
               });
}

void replicate(Module& module, Mesh mesh, const std::string& axis, const ReplicatePolicy& policy) {
  Module* const one = &module;
  replicate({&one, 1}, mesh, axis, policy);
}

void replicate(Module& module, Mesh mesh, const std::vector<std::string>& axes,
               const ReplicatePolicy& policy) {
  if (axes.size() == 1) return replicate(module, mesh, axes[0], policy);
  fail<UsageError>("replicate", counted(axes.size(), "axis"),
                   " are given, expected one: flatten them into one axis, or use fully_shard "
                   "with shard and replicate axes");
}

}  // namespace tessera::nn
