// SPDX-License-Identifier: Apache-2.0
// Everything is checked before anything changes. Whether the tensor axis cuts experts is read from
// their parameters, which its plan has laid out.
#include "tessera/nn/parallel/expert_parallel.h"

#include "tessera/core/message.h"
#include "tessera/nn/parallel/wrap_impl.h"

#include <algorithm>
#include <cmath>

namespace tessera::nn {
namespace {

constexpr std::string_view kSharded = "efsdp", kExperts = "ep";

std::vector<std::pair<std::string, MoE*>> mixtures(Module& root) {
  std::vector<std::pair<std::string, MoE*>> found;
  for (const NamedModule& m : named_modules(root)) {
    if (auto* moe = dynamic_cast<MoE*>(m.module)) found.emplace_back(m.name, moe);
  }
  return found;
}

// The sparse mesh on which the experts lie; empty: none.
Mesh mesh_of(const MoE& moe) {
  if (!moe.experts.w1.is_distributed()) return {};
  const Mesh mesh = layout_of(moe.experts.w1).mesh();
  return mesh.has(kExperts) ? mesh : Mesh();
}

std::shared_ptr<const Dispatcher> dispatcher_over(Mesh sparse, double padding) {
  if (padding > 0)
    return std::make_shared<PaddedDispatcher>(sparse, std::string(kExperts), padding);
  return std::make_shared<ExchangeDispatcher>(sparse, std::string(kExperts));
}

int data_ranks(const Mesh& mesh, const ExpertParallel& degrees) {
  int ranks = 1;
  for (const std::string& axis : degrees.data) ranks *= mesh.size(axis);
  return ranks;
}

void find_faults(detail::Faults& faults, Module& root, Mesh mesh, const ExpertParallel& degrees) {
  std::vector<std::string> last = degrees.data;
  last.push_back(degrees.tensor);
  const auto first = mesh.axes() - static_cast<int>(last.size());
  for (size_t i = 0; i < last.size(); ++i) {
    if (first >= 0 && mesh.axis(first + static_cast<int>(i)).name == last[i]) continue;
    std::string names;
    for (const std::string& name : last) names += concat(names.empty() ? "" : ", ", name);
    return faults.add(mesh, " does not end in the axes ", names, ", whose ranks share the experts");
  }
  const int tp = mesh.size(degrees.tensor);
  const std::string fault = expert_parallel_fault(degrees, data_ranks(mesh, degrees), tp);
  if (!fault.empty()) return faults.add(fault);
  for (const int64_t n : expert_counts(root)) {
    if (n % degrees.degree == 0) continue;
    faults.add("expert_parallel_degree ", degrees.degree, " does not divide the ",
               counted(n, "expert"), " of a layer: give a degree that does");
  }
  const bool cut = degrees.tensor_degree == tp;
  for (const auto& [name, moe] : mixtures(root)) {
    Module* const module = &moe->experts;
    detail::find_wrapped(faults, {&module, 1});
    const Tensor& w = moe->experts.w1;
    if (w.is_distributed() && layout_of(w).mesh() != mesh) {
      faults.add(name, ".experts lie on ", layout_of(w).mesh(), ", expected ", mesh);
    } else if (tp > 1 && moe->experts.hidden_is_cut_over(degrees.tensor) != cut) {
      faults.add("the plan of tensor parallelism ", cut ? "left whole" : "cut", " the experts of ",
                 name, ", but expert_tensor_parallel_degree is ", degrees.tensor_degree,
                 ": make it with TensorParallelOptions::expert_parallel ", cut ? "false" : "true");
    }
  }
}

}  // namespace

void add_mixture(TensorParallelPlan& plan, std::string_view pattern, bool shared_experts) {
  const std::string moe(pattern), experts = moe + ".experts", shared = moe + ".shared_experts",
                                  w1 = shared + ".w1", w2 = shared + ".w2", w3 = shared + ".w3";
  const Placement stream = plan.options.stream();
  if (plan.options.expert_parallel) {
    plan.add({moe}, replicated_parameters());
    if (shared_experts)
      plan.add({shared}, whole_inputs())
          .add({w1, w3}, column_parallel())
          .add({w2}, row_parallel(stream));
    return;
  }
  // Sums over the axis are reduced once, of routed and shared experts together.
  plan.add({moe}, {.input = Replicate(), .output = stream})
      .add({experts}, {.parameters = {{"w1", Shard(1)}, {"w2", Shard(2)}, {"w3", Shard(1)}}});
  if (shared_experts)
    plan.add({w1, w3}, column_parallel()).add({w2}, {.parameters = {{"weight", Shard(1)}}});
}

std::string expert_parallel_fault(const ExpertParallel& degrees, int64_t data, int64_t tensor) {
  const int64_t ep = degrees.degree, etp = degrees.tensor_degree;
  if (etp != 1 && etp != tensor) {
    return concat("expert_tensor_parallel_degree ", etp, ": expected 1, or tensor_parallel_degree ",
                  tensor);
  }
  if (!std::isfinite(degrees.padding) || degrees.padding < 0) {
    return concat("expert_parallel_padding ", degrees.padding,
                  ": expected a factor above 0, or 0 for no padding");
  }
  // Whole experts borrow the ranks of all axes.
  const bool all = etp == 1;
  const int64_t ranks = all ? data * tensor : data;
  if (ep >= 1 && ranks % ep == 0) return {};
  return concat("expert_parallel_degree ", ep, " does not divide the ", counted(ranks, "rank"),
                " of ", "data_parallel_shard_degree x context_parallel_degree",
                all ? " x tensor_parallel_degree" : "", ": give a degree that does");
}

std::vector<int64_t> expert_counts(Module& root) {
  std::vector<int64_t> counts;
  for (const auto& [name, moe] : mixtures(root)) {
    const int64_t n = moe->experts.w1.size(0);
    if (std::ranges::find(counts, n) == counts.end()) counts.push_back(n);
  }
  return counts;
}

Mesh sparse_mesh(Mesh mesh, const ExpertParallel& degrees) {
  const int tp = mesh.size(degrees.tensor);
  const bool cut = degrees.tensor_degree == tp;
  std::vector<MeshAxis> axes;
  for (int a = 0; a < mesh.index(degrees.data.front()); ++a) axes.push_back(mesh.axis(a));
  const int ranks = data_ranks(mesh, degrees) * (cut ? 1 : tp);
  axes.push_back({std::string(kSharded), ranks / degrees.degree});
  axes.push_back({std::string(kExperts), degrees.degree});
  if (cut) axes.push_back({degrees.tensor, tp});
  return mesh.represent(std::move(axes));
}

void expert_parallel(Module& root, Mesh mesh, const ExpertParallel& degrees) {
  detail::Faults faults("expert_parallel");
  find_faults(faults, root, mesh, degrees);
  faults.raise();
  const Mesh sparse = sparse_mesh(mesh, degrees);
  (void)sparse.group(sparse.index(kExperts));
  const std::shared_ptr<const Dispatcher> dispatcher = dispatcher_over(sparse, degrees.padding);
  for (const auto& [name, moe] : mixtures(root)) {
    for (Tensor* w : {&moe->experts.w1, &moe->experts.w2, &moe->experts.w3}) {
      const Layout carried = w->is_distributed() ? detail::carried_to(sparse, layout_of(*w))
                                                 : Layout::replicated(sparse);
      detail::lie_on(*w, carried);
      detail::lie_on(*w, carried.with(kExperts, Shard(0)));
    }
    moe->set_dispatcher(dispatcher);
  }
}

void fully_shard_experts(Module& root, const std::vector<std::string>& replicate,
                         const ShardPolicy& policy) {
  for (const auto& [name, moe] : mixtures(root)) {
    const Mesh mesh = mesh_of(*moe);
    if (!mesh) continue;
    const int64_t experts = moe->experts.w1.size(0), ranks = mesh.size(kSharded);
    ShardPolicy own = policy;
    if (!own.dim) {
      const int dim = ranks * mesh.size(kExperts) > experts ? 1 : 0;
      own.dim = [dim](const std::string&, const Tensor&) { return dim; };
    }
    if (!reshard_fault(own.reshard_after_forward, ranks).empty())
      own.reshard_after_forward = Reshard::always;
    fully_shard(moe->experts, mesh, {{std::string(kSharded)}, replicate}, own);
  }
}

void replicate_experts(Module& root, const std::string& axis, const ReplicatePolicy& policy) {
  for (const auto& [name, moe] : mixtures(root)) {
    const Mesh mesh = mesh_of(*moe);
    if (!mesh) continue;
    const std::string copies = concat(axis, '_', kSharded);
    (void)mesh.flatten({axis, kSharded}, copies);
    replicate(moe->experts, mesh, copies, policy);
  }
}

}  // namespace tessera::nn
