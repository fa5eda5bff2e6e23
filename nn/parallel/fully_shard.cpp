// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/parallel/fully_shard.h"

#include "tessera/dist/dtensor.h"
#include "tessera/nn/parallel/wrap_impl.h"

namespace tessera::nn {
namespace {

using detail::Faults;

// The layout with the shard axes added, or nothing if the parameter cannot have it.
Layout sharded(Faults& faults, const detail::Unit::Slot& s, Mesh mesh, const DataAxes& axes,
               const ShardPolicy& policy) {
  const Tensor& p = s.parameter;
  Layout layout = p.is_distributed() ? layout_of(p) : Layout::replicated(mesh);
  const int dim = policy.dim ? policy.dim(s.name, p) : 0;
  if (layout.mesh() != mesh) {
    faults.add(s.name, " lies on ", layout.mesh().text(), ", expected ", mesh.text());
    return {};
  }
  if (dim < 0 || dim >= p.rank()) {
    faults.add(s.name, ", ", p.meta(), ", has no dim ", dim,
               " to cut: give it one, or let the policy ignore it");
    return {};
  }
  for (const auto* list : {&axes.shard, &axes.replicate}) {
    for (const std::string& axis : *list) {
      if (layout.placement(axis).kind == Placement::Kind::replicate) continue;
      faults.add(s.name, " is ", layout.text(), " already, expected Replicate on ", axis);
      return {};
    }
  }
  for (const std::string& axis : axes.shard) layout = layout.with(axis, Shard(dim));
  return layout;
}

}  // namespace

void fully_shard(std::span<Module* const> modules, Mesh mesh, const DataAxes& axes,
                 const ShardPolicy& policy) {
  const std::string pass = "fully_shard";
  detail::check_dtypes(pass, policy.precision);
  const Bucket::Axes bucket_axes{axes.shard, axes.replicate};
  Faults faults(pass);
  if (modules.empty()) faults.add("no module is given");
  if (axes.shard.empty())
    faults.add("no axis to shard over is given: use replicate() for data parallelism without");
  detail::find_bad_axes(faults, mesh, bucket_axes);
  int64_t ranks = 1;
  for (const std::string& axis : axes.shard) ranks *= mesh.has(axis) ? mesh.size(axis) : 1;
  const Reshard reshard = policy.reshard_after_forward;
  if (const std::string fault = reshard_fault(reshard, ranks); !fault.empty())
    faults.add("reshard_after_forward: ", fault);
  detail::find_wrapped(faults, modules);
  faults.raise();
  detail::FreeMembers members =
      detail::free_members(modules, [&](const std::string& name, const Tensor& p) {
        return !policy.ignore || !policy.ignore(name, p);
      });
  const std::vector<bool> taken = detail::find_taken(faults, members.slots);
  std::vector<Layout> layouts;
  for (size_t i = 0; i < taken.size(); ++i)
    layouts.push_back(taken[i] ? Layout() : sharded(faults, members.slots[i], mesh, axes, policy));
  faults.raise();
  for (size_t i = 0; i < layouts.size(); ++i)
    detail::lie_on(members.slots[i].parameter, layouts[i]);
  for (Tensor* b : members.buffers) {
    if (!b->is_distributed()) detail::lie_on(*b, Layout::replicated(mesh));
  }
  const int k = reshard.ways(), ways = k > 1 && k < ranks ? k : 0;
  Bucket::connect(mesh, bucket_axes, ways);
  detail::wrap({modules.begin(), modules.end()}, std::move(members),
               detail::options_of(pass, policy.precision, reshard, mesh),
               [=](std::vector<Tensor> parameters) {
                 return std::make_unique<detail::BucketParameters>(
                     std::move(parameters), mesh, bucket_axes,
                     Bucket::Policy{policy.precision.param, policy.precision.reduce, ways},
                     policy.accumulation);
               });
}

void fully_shard(Module& module, Mesh mesh, const DataAxes& axes, const ShardPolicy& policy) {
  Module* const one = &module;
  fully_shard({&one, 1}, mesh, axes, policy);
}

}  // namespace tessera::nn
