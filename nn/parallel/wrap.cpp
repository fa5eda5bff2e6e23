// SPDX-License-Identifier: Apache-2.0
#include "tessera/core/message.h"
#include "tessera/dist/dtensor.h"
#include "tessera/nn/parallel/wrap_impl.h"
#include "tessera/nn/parameters_impl.h"

#include <algorithm>
#include <charconv>
#include <set>

namespace tessera::nn {
namespace detail {

void check_dtypes(std::string_view pass, const MixedPrecision& policy) {
  for (const auto& dtype : {policy.param, policy.reduce, policy.output}) {
    if (dtype && !is_floating(*dtype))
      fail<DTypeError>(pass, "parameters cannot be computed with or reduced in ", *dtype);
  }
}

void find_wrapped(Faults& faults, std::span<Module* const> modules) {
  for (const Module* module : modules) {
    const auto* note = module->attached<UnitNote>();
    const auto unit = note ? note->unit.lock() : nullptr;
    if (!unit) continue;
    if (note->runs_it) {
      faults.add(name_of(*module), " is wrapped by ", unit->options().pass,
                 " already: wrap a module once, by one pass");
    } else {
      faults.add(name_of(*module), " lies in a module that ", unit->options().pass,
                 " has wrapped: wrap children before their parent");
    }
  }
}

void check_unwrapped(const std::string& pass, std::span<Module* const> modules) {
  Faults faults(pass);
  find_wrapped(faults, modules);
  faults.raise();
}

void find_bad_axes(Faults& faults, Mesh mesh, const Bucket::Axes& axes) {
  std::set<std::string> seen;
  for (const auto* list : {&axes.shard, &axes.replicate}) {
    for (const std::string& axis : *list) {
      if (!mesh.has(axis)) faults.add(mesh.text(), " has no axis ", axis);
      else if (!seen.insert(axis).second) faults.add("axis ", axis, " is given twice");
    }
  }
}

std::vector<bool> find_taken(Faults& faults, const std::vector<Unit::Slot>& slots) {
  std::vector<bool> taken;
  const auto& holders = Context::current().state<UnitFlow>().holders;
  for (const Unit::Slot& s : slots) {
    const auto found = holders.find(s.parameter.handle().get());
    const auto unit = found == holders.end() ? nullptr : found->second.lock();
    const bool same = unit && unit->options().mesh &&
                      std::ranges::any_of(unit->slots(), [&](const Unit::Slot& other) {
                        return other.parameter.handle() == s.parameter.handle();
                      });
    taken.push_back(same);
    if (same)
      faults.add(s.name,
                 " is shared with a module that another call has wrapped: give both to "
                 "one call, or leave them to their common parent");
  }
  return taken;
}

UnitOptions options_of(std::string pass, const MixedPrecision& policy, Reshard reshard, Mesh mesh) {
  return {std::move(pass), policy.cast_forward_inputs ? policy.param : std::nullopt, policy.output,
          reshard, mesh};
}

void lie_on(Tensor& t, Layout layout) {
  const Layout before = t.is_distributed() ? layout_of(t) : Layout();
  if (before == layout) return;
  if (t.device().is_meta()) {
    const Tensor part = empty(layout.local_shape(t.shape()), t.dtype(), kMeta);
    become(t, make_distributed(part, t.shape(), layout));
  } else if (!before) {
    become(t, distribute(t.detach(), layout));
  } else if (before.mesh() == layout.mesh()) {
    become(t, redistribute(t.detach(), layout));
  } else {  // the same piece on another mesh
    become(t, make_distributed(local(t), t.shape(), layout));
  }
}

void wrap(std::vector<Module*> modules, FreeMembers members, UnitOptions options, Unit::Make make) {
  auto unit = std::make_shared<Unit>(std::move(modules), std::move(members.slots),
                                     std::move(options), std::move(make));
  unit->attach(members.inside);
}

namespace {

// The unit that runs around a module.
Unit& unit_of(std::string_view who, const Module& module) {
  const auto* note = module.attached<UnitNote>();
  const auto unit = note && note->runs_it ? note->unit.lock() : nullptr;
  if (!unit) {
    fail<UsageError>(who, name_of(module),
                     " is not wrapped: call fully_shard or replicate on it first");
  }
  return *unit;
}

// Calls `f` with the unit of each wrapped module from `root` on, once.
template <class F> void for_each_unit(Module& root, const F& f) {
  class Units final : public Visitor {
   public:
    explicit Units(const F& f) : f_(f) {}
    bool on_module(const std::string&, Module& m) override {
      const auto* note = m.attached<UnitNote>();
      const auto unit = note && note->runs_it ? note->unit.lock() : nullptr;
      if (unit && seen_.insert(unit.get()).second) f_(*unit);
      return true;
    }

   private:
    const F& f_;
    std::set<const Unit*> seen_;
  } units(f);
  units.on_module("", root);
  units.walk(root);
}

std::optional<UnitList> list_of(std::string_view who, std::span<Module* const> modules) {
  UnitList list;
  for (const Module* m : modules) list.push_back(unit_of(who, *m).weak_from_this());
  return list;
}

}  // namespace
}  // namespace detail

Reshard Reshard::among(int ways) {
  if (ways < 1) {
    fail<ValueError>("Reshard::among", counted(ways, "rank"),
                     " cannot keep a copy of the gathered parameters: give 1 (never) or "
                     "more, or Reshard::always to keep none");
  }
  return {Kind::among, ways};
}

Reshard parse_reshard(std::string_view text, std::string_view who) {
  if (text == "default") return Reshard::automatic;
  if (text == "always") return Reshard::always;
  if (text == "never") return Reshard::never;
  int ways = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ways);
  if (error == std::errc() && end == text.data() + text.size() && ways > 0)
    return Reshard::among(ways);
  fail<ValueError>(who, '\'', text,
                   "' is not one of default | always | never, nor a number of ranks that keep the "
                   "gathered parameters between forward and backward; ZeRO-1, which shards "
                   "optimizer states alone, is not offered: never (ZeRO-2) sends no more and "
                   "shards gradients too");
}

std::string reshard_fault(Reshard reshard, int64_t ranks) {
  const int ways = reshard.ways();
  if (ways == 0 || ranks % ways == 0) return {};
  return concat(counted(ways, "rank"), " cannot keep the gathered parameters of ",
                counted(ranks, "rank"), " between forward and backward: give a divisor of ", ranks,
                ", always or never");
}

MicroBatch::MicroBatch(bool last)
    : before_(std::exchange(Context::current().state<detail::UnitFlow>().last, last)) {}
MicroBatch::~MicroBatch() { Context::current().state<detail::UnitFlow>().last = before_; }

void unshard(Module& module) { detail::unit_of("unshard", module).prefetch(); }

void hold(Module& module) {
  (void)detail::unit_of("hold", module);
  detail::for_each_unit(module, [](detail::Unit& unit) { unit.hold(); });
}

void reshard(Module& module) {
  (void)detail::unit_of("reshard", module);
  detail::for_each_unit(module, [](detail::Unit& unit) { unit.reshard(); });
}

int64_t whole_parameter_bytes(Module& root) {
  int64_t bytes = 0;
  detail::for_each_unit(root, [&](const detail::Unit& unit) { bytes += unit.whole_bytes(); });
  return bytes;
}

void set_forward_prefetch(Module& module, std::span<Module* const> next) {
  detail::unit_of("set_forward_prefetch", module).forward_prefetch =
      detail::list_of("set_forward_prefetch", next);
}
void set_backward_prefetch(Module& module, std::span<Module* const> next) {
  detail::unit_of("set_backward_prefetch", module).backward_prefetch =
      detail::list_of("set_backward_prefetch", next);
}

LayoutOf laid_out(Module& root, Mesh mesh) {
  std::unordered_map<std::string, Layout> layouts;
  auto tensors = named_parameters(root);
  for (auto& b : named_buffers(root)) tensors.push_back(std::move(b));
  for (const NamedParameter& t : tensors) {
    if (t.tensor.is_distributed()) layouts.emplace(t.name, layout_of(t.tensor));
  }
  return [layouts = std::move(layouts), mesh](const std::string& name, const TensorMeta&) {
    const auto found = layouts.find(name);
    return found == layouts.end() ? Layout::replicated(mesh) : found->second;
  };
}

Mesh compute_mesh(const Module& module) {
  const auto* note = module.attached<detail::UnitNote>();
  const auto unit = note ? note->unit.lock() : nullptr;
  return unit ? unit->options().mesh : Mesh();
}

}  // namespace tessera::nn
