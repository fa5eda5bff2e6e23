// SPDX-License-Identifier: Apache-2.0
// Everything is checked before anything changes. Hooks bring inputs and outputs to their
// placements by redistribute, whose backward is its mirror image. Where a replicated input needs no
// move forward, its gradient is still a sum over the ranks, so an identity reduces that.
#include "tessera/nn/parallel/tensor_parallel.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/dtensor.h"
#include "tessera/nn/parallel/wrap_impl.h"
#include "tessera/nn/parameters.h"

#include <algorithm>
#include <unordered_map>

namespace tessera::nn {
namespace {

using detail::Faults;

struct AppliedPlan {
  TensorParallelPlan plan;
};

// `*` matches one part of a path, between dots.
bool matches(std::string_view pattern, std::string_view path) {
  while (true) {
    const size_t p = pattern.find('.'), q = path.find('.');
    const std::string_view part = pattern.substr(0, p);
    if (part != "*" && part != path.substr(0, q)) return false;
    if (p == pattern.npos || q == path.npos) return p == pattern.npos && q == path.npos;
    pattern.remove_prefix(p + 1);
    path.remove_prefix(q + 1);
  }
}

// An alias of x, whose gradient is summed over the axis.
Tensor with_whole_gradient(const Tensor& x, const std::string& axis) {
  return tessera::apply(
      {"tensor_parallel", [](FunctionContext&, Tensors in) { return TensorList{in[0].detach()}; },
       [axis](FunctionContext&, const Grads& dy) {
         if (!dy[0].defined()) return Grads{};
         return Grads{redistribute(dy[0], layout_of(dy[0]).with(axis, Replicate()))};
       }},
      {x})[0];
}

Tensor brought(const Tensor& x, const std::string& axis, Placement to) {
  if (!x.defined() || !is_floating(x.dtype()) || !x.is_distributed()) return x;
  const Layout from = layout_of(x), target = from.with(axis, to);
  if (from != target) return redistribute(x, target);
  const bool recorded = x.requires_grad() && Context::current().grad_enabled;
  return recorded && to == Replicate() ? with_whole_gradient(x, axis) : x;
}

void add_hooks(Module& module, const TensorParallelStyle& style, const std::string& axis) {
  if (style.input) {
    module.register_forward_pre_hook([axis, to = *style.input](const Module&, TensorList& inputs) {
      for (Tensor& x : inputs) x = brought(x, axis, to);
    });
  }
  if (!style.output) return;
  module.register_forward_hook([axis, to = *style.output, of_ids = style.of_ids](
                                   const Module&, Tensors inputs, TensorList& outputs) {
    if (of_ids && is_floating(inputs[0].dtype())) return;
    outputs[0] = brought(outputs[0], axis, to);
  });
}

// The plan matched to a tree.
struct Match {
  std::vector<std::pair<Module*, const TensorParallelStyle*>> modules;
  std::unordered_map<std::string, Placement> parameters;  // by path
};

Match match(Faults& faults, Module& root, const TensorParallelPlan& plan, int64_t degree) {
  Match found;
  const std::vector<NamedModule> modules = named_modules(root);
  std::unordered_map<const Module*, const std::string*> taken;
  for (const TensorParallelPlan::Entry& e : plan.entries) {
    bool any = false;
    for (const NamedModule& m : modules) {
      if (m.name.empty() || !matches(e.pattern, m.name)) continue;
      any = true;
      const auto [at, fresh] = taken.try_emplace(m.module, &e.pattern);
      if (!fresh) {
        faults.add(m.name, " matches both ", *at->second, " and ", e.pattern,
                   ": give each module one style");
      }
      found.modules.emplace_back(m.module, &e.style);
      for (const NamedParameter& p : named_parameters(*m.module)) {
        for (const auto& [name, placement] : e.style.parameters) {
          if (p.name != name || (e.style.units > 0 && e.style.units % degree != 0)) continue;
          found.parameters[concat(m.name, '.', name)] = placement;
          if (placement.kind == Placement::Kind::shard && placement.dim >= p.tensor.rank())
            faults.add(m.name, '.', name, ", ", p.tensor.meta(), ", has no dim ", placement.dim,
                       " to shard");
        }
      }
    }
    if (!any)
      faults.add("no module matches ", e.pattern,
                 ": modules have names like layers.3.attention.wq");
  }
  return found;
}

void find_sharded(Faults& faults, Module& root, Mesh mesh) {
  for (const NamedModule& m : named_modules(root)) {
    const auto* note = m.module->attached<detail::UnitNote>();
    const auto unit = note ? note->unit.lock() : nullptr;
    if (!unit) continue;
    faults.add(m.name.empty() ? "the root module" : m.name, " is wrapped by ", unit->options().pass,
               " already: call tensor_parallel first");
    return;  // its parameters are sharded by that pass
  }
  for (const NamedParameter& p : named_parameters(root)) {
    if (!p.tensor.is_distributed()) continue;
    const Layout layout = layout_of(p.tensor);
    if (layout.mesh() != mesh) faults.add(p.name, " lies on ", layout.mesh(), ", not on ", mesh);
    else if (!layout.is_replicated())
      faults.add(p.name, " is sharded already, ", layout.placements_text(),
                 ": call tensor_parallel once, before fully_shard and replicate");
  }
}

}  // namespace

TensorParallelStyle column_parallel(int64_t units) {
  return {.parameters = {{"weight", Shard(0)}, {"bias", Shard(0)}}, .units = units};
}
TensorParallelStyle row_parallel(Placement output) {
  return {.parameters = {{"weight", Shard(1)}}, .output = output};
}
TensorParallelStyle vocabulary_parallel(Placement output) {
  return {.parameters = {{"weight", Shard(0)}}, .output = output, .of_ids = true};
}
TensorParallelStyle replicated_parameters() { return {}; }
TensorParallelStyle whole_inputs() { return {.input = Replicate()}; }
TensorParallelStyle whole_outputs() { return {.output = Replicate()}; }

TensorParallelPlan& TensorParallelPlan::add(std::initializer_list<std::string_view> patterns,
                                            const TensorParallelStyle& style) {
  for (const std::string_view pattern : patterns) entries.push_back({std::string(pattern), style});
  return *this;
}

std::string TensorParallelPlan::text() const {
  std::string text =
      concat("tensor parallel: activations between layers ", options.stream(), ", ",
             options.loss_parallel ? "loss over the sharded vocabulary" : "loss on each rank");
  size_t width = 0;
  for (const Entry& e : entries) width = std::max(width, e.pattern.size());
  for (const Entry& e : entries) {
    std::string says;
    const auto say = [&](std::string_view what, Placement p) {
      says += concat(says.empty() ? "" : ", ", what, ' ', p);
    };
    for (const auto& [name, placement] : e.style.parameters) say(name, placement);
    if (e.style.input) say("input", *e.style.input);
    if (e.style.output) say("output", *e.style.output);
    if (says.empty()) says = "replicated";
    text += concat("\n  ", e.pattern, std::string(width - e.pattern.size() + 2, ' '), says);
  }
  return text;
}

void tensor_parallel(Module& root, Mesh mesh, const TensorParallelPlan& plan,
                     const std::string& axis) {
  Faults faults("tensor_parallel");
  if (plan.options.asynchronous) {
    faults.add(
        "asynchronous tensor parallelism, which overlaps a matmul with its own collective, is not "
        "offered yet: leave it off; results are the same");
  }
  if (!mesh.has(axis)) {
    faults.add(mesh, " has no axis ", axis);
  } else {
    for (const TensorParallelPlan::Divided& d : plan.divided) {
      if (!d.fits(mesh.size(axis)))
        faults.add("the tensor parallel degree ", mesh.size(axis), " does not divide ", d.field,
                   ' ', d.number, d.copied ? " and is no multiple of it" : "",
                   ": give a degree that does");
    }
  }
  const Match found = match(faults, root, plan, mesh.has(axis) ? mesh.size(axis) : 1);
  find_sharded(faults, root, mesh);
  faults.raise();

  auto tensors = named_parameters(root);
  for (NamedParameter& b : named_buffers(root)) tensors.push_back(std::move(b));
  for (NamedParameter& t : tensors) {
    const auto at = found.parameters.find(t.name);
    const Placement placement = at == found.parameters.end() ? Replicate() : at->second;
    detail::lie_on(t.tensor, Layout::replicated(mesh).with(axis, placement));
  }
  for (const auto& [module, style] : found.modules) add_hooks(*module, *style, axis);
  root.attach(std::make_shared<AppliedPlan>(AppliedPlan{plan}));
}

const TensorParallelPlan* tensor_parallel_plan_of(const Module& root) {
  const auto* applied = root.attached<AppliedPlan>();
  return applied ? &applied->plan : nullptr;
}

}  // namespace tessera::nn
