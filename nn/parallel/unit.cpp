// SPDX-License-Identifier: Apache-2.0
// Order of collectives (unit_state_impl.h has the states). Forward: the gather of a unit, then,
// when it is complete, that of the next one, which runs while this one computes. Backward: the
// region of a unit gathers it again and then the unit before it; its functions free the whole
// parameters and reduce their gradients. What a rank did not use runs too (Function::always), at
// the same place, so that no rank waits for one that skipped it.
#include "tessera/core/context.h"
#include "tessera/core/message.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/module_impl.h"
#include "tessera/nn/parallel/unit_impl.h"

#include <algorithm>

namespace tessera::nn::detail {
namespace {

UnitFlow& flow_of_rank() { return Context::current().state<UnitFlow>(); }

// Null in a Context without autograd.
Tape* tape_or_null() { return dynamic_cast<Tape*>(Context::current().recorder); }

TensorList converted(Tensors tensors, const std::optional<DType>& dtype) {
  TensorList list;
  for (const Tensor& t : tensors)
    list.push_back(dtype && t.defined() && is_floating(t.dtype()) ? cast(t, *dtype) : t);
  return list;
}

}  // namespace

// Replaces the module's members by the whole parameters during its lifetime.
class Unit::Swapped {
 public:
  explicit Swapped(Unit& unit) : unit_(unit) { set(true); }
  ~Swapped() { set(false); }
  Swapped(const Swapped&) = delete;
  Swapped& operator=(const Swapped&) = delete;

 private:
  void set(bool on) {
    unit_.swapped_ = on;
    for (Slot& s : unit_.slots_) {
      for (Tensor* member : s.members) *member = on ? s.whole : s.parameter;
    }
  }
  Unit& unit_;
};

// Traces and errors name the unit during its lifetime, whoever made it gather or reduce.
class Unit::InOwnName {
 public:
  explicit InOwnName(const Unit& unit)
      : context_(Context::current()),
        before_(std::exchange(context_.module_path, std::vector<std::string>{unit.path_})) {}
  ~InOwnName() { context_.module_path = std::move(before_); }
  InOwnName(const InOwnName&) = delete;
  InOwnName& operator=(const InOwnName&) = delete;

 private:
  Context& context_;
  std::vector<std::string> before_;
};

// One run of a module of the unit; the outermost one is the forward that gives the order.
class Unit::Scope {
 public:
  Scope(Unit& unit, UnitFlow& flow, bool recompute, Tensors inputs)
      : unit_(unit), flow_(flow), root_(!recompute && !flow.pass) {
    if (!root_) return;
    // A model that runs on shapes alone needs no values.
    const bool planned = std::ranges::all_of(
        inputs, [](const Tensor& t) { return !t.defined() || t.device().is_meta(); });
    if (unit.options_.mesh && !planned && !std::exchange(unit.checked_, true)) unit.check_values();
    flow.pass = std::make_shared<UnitPass>();
    flow.pass->number = ++flow.passes;
  }
  ~Scope() {
    if (ended_) return;
    unit_.close();  // a recompute stops early by an exception
    if (root_) give_up();
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  TensorList end(TensorList out) {
    ended_ = true;
    if (!root_) return out;
    const std::shared_ptr<UnitPass> pass = close_all();
    unit_.order_.assign(pass->begun.begin(), pass->begun.end());
    for (const auto& unit : std::exchange(flow_.left, {})) {
      if (unit->options_.reshard != Reshard::automatic) unit->release_after_forward();
    }
    // Nobody else would free what this forward did not run, or not to its end.
    for (const auto& unit : pass->begun) {
      if (unit->options_.reshard != Reshard::never && !has(pass->ended, unit))
        unit->release_after_forward();
    }
    for (const auto& unit : std::exchange(pass->ahead, {})) {
      if (!has(pass->begun, unit)) unit->release();
    }
    // The graph holds the pass, so the pass must not hold the graph.
    const std::vector<Tensor> functions = std::exchange(pass->functions, {});
    return functions.empty() ? out : reaching({out.begin(), out.end()}, functions);
  }

 private:
  static bool has(const std::vector<std::shared_ptr<Unit>>& list,
                  const std::shared_ptr<Unit>& unit) {
    return std::ranges::find(list, unit) != list.end();
  }
  // A unit of several modules is open if not all of them ran.
  std::shared_ptr<UnitPass> close_all() {
    auto pass = std::exchange(flow_.pass, nullptr);
    for (const auto& unit : pass->begun) unit->close();
    return pass;
  }
  // A forward that failed leaves nothing whole, nor under way to be.
  void give_up() {
    const std::shared_ptr<UnitPass> pass = close_all();
    pass->functions.clear();
    for (const auto& unit : pass->begun) {
      unit->release();
      for (const auto& wished : unit->forward_prefetch.value_or(UnitList())) {
        if (const auto other = wished.lock()) other->release();
      }
    }
    for (const auto& unit : std::exchange(pass->ahead, {})) unit->release();
    for (const auto& unit : std::exchange(flow_.left, {})) unit->release();
  }
  Unit& unit_;
  UnitFlow& flow_;
  bool root_, ended_ = false;
};

Unit::Unit(std::vector<Module*> modules, std::vector<Slot> slots, UnitOptions options, Make make)
    : modules_(std::move(modules)),
      slots_(std::move(slots)),
      options_(std::move(options)),
      make_(std::move(make)) {}

void Unit::attach(std::span<Module* const> inside) {
  const auto self = shared_from_this();
  auto& holders = flow_of_rank().holders;
  std::erase_if(holders, [](const auto& holder) { return holder.second.expired(); });
  for (const Slot& s : slots_) holders[s.parameter.handle().get()] = self;
  for (Module* m : inside) m->attach(std::make_shared<UnitNote>(UnitNote{self, false}));
  for (Module* m : modules_) {
    m->attach(std::make_shared<UnitNote>(UnitNote{self, true}));
    m->register_around_hook([self](const Module& module, const CheckpointedFunction& forward,
                                   Tensors inputs) { return self->run(module, forward, inputs); });
  }
}

TensorList Unit::run(const Module& module, const CheckpointedFunction& forward, Tensors inputs) {
  const TensorList in = converted(inputs, options_.compute);
  if (swapped_) return forward(in);  // the unit runs inside itself
  UnitFlow& flow = flow_of_rank();
  const Tape* tape = tape_or_null();
  const bool recompute = tape && tape->passes > 0;
  Scope scope(*this, flow, recompute, in);
  const bool first = &module == modules_.front() || recompute || opened_ != flow.pass->number;
  if (first) open(flow, recompute);
  TensorList out;
  {
    std::optional<BackwardRegion> region;
    if (region_) region.emplace(region_);
    const Swapped swapped(*this);
    out = converted(forward(in), options_.output);
  }
  if (recompute) {
    close();
  } else if (&module == modules_.back()) {
    if (at_) *at_ = flow.pass->ended.size();
    flow.pass->ended.push_back(shared_from_this());
    if (options_.reshard != Reshard::never) flow.left.push_back(shared_from_this());
    close();
  }
  return scope.end(std::move(out));
}

void Unit::open(UnitFlow& flow, bool recompute) {
  if (recompute) {
    refresh();
    for (const Slot& s : slots_) {
      if (s.parameter.storage().version() == s.version) continue;
      fail<InPlaceError>("checkpoint", s.name, ", ", s.parameter.meta(),
                         ", was written in place between forward and its recompute; write it after "
                         "backward");
    }
    on(UnitEvent::recompute_begins);
    make_whole(nullptr);
    return;
  }
  const std::shared_ptr<UnitPass> pass = flow.pass;
  for (const auto& unit : std::exchange(flow.left, {})) {
    if (unit.get() != this) unit->release_after_forward();
  }
  refresh();
  path_ = joined_path(Context::current().module_path);
  for (Slot& s : slots_) s.version = s.parameter.storage().version();
  on(UnitEvent::forward_begins);
  const size_t place = pass->begun.size();
  const UnitList& order = pass->begun.empty() ? order_ : pass->begun[0]->order_;
  const bool known = place + 1 < order.size() && order[place].lock().get() == this;
  pass->begun.push_back(shared_from_this());
  opened_ = pass->number;
  const bool gathers = std::ranges::any_of(
      groups_, [](const Group& g) { return g.parameters && g.parameters->always(); });
  std::optional<BackwardRegion> region;
  if (gathers && Context::current().grad_enabled) {
    at_ = std::make_shared<size_t>(0);
    region.emplace(
        [self = shared_from_this(), pass, at = at_] { self->before_backward(pass, *at); },
        [self = shared_from_this()] { self->release(); });
    region_ = region->region();
  }
  make_whole(pass.get());
  // Not before: while whole parameters are laid out their gather's buffer is there too.
  start(forward_prefetch, known ? order[place + 1].lock().get() : nullptr, pass.get());
}

void Unit::close() {
  on(UnitEvent::run_ends);
  opened_ = 0;
  region_ = {};
  at_ = {};
  for (Slot& s : slots_) s.whole = {};
}

void Unit::make_whole(UnitPass* pass) {
  for (Slot& s : slots_) s.whole = s.parameter;
  for (const Group& g : groups_) {
    if (!g.parameters) continue;
    TensorList whole;
    if (g.trained) {
      std::vector<Tensor> parameters;
      for (const size_t i : g.slots) parameters.push_back(slots_[i].parameter);
      const bool always = g.parameters->always();
      whole = apply(
          {"unshard", [from = g.parameters](FunctionContext&, Tensors) { return from->whole(); },
           // Nothing recorded after this function needs the whole parameters any more.
           [self = shared_from_this(), to = g.parameters](FunctionContext&, const Grads& dy) {
             if (self->state_ != UnitState::held) to->release();
             const InOwnName named(*self);
             return to->reduce(dy, flow_of_rank().last);
           },
           always},
          parameters);
      if (pass && always && whole[0].requires_grad()) pass->functions.push_back(whole[0]);
    } else {
      whole = g.parameters->whole();
    }
    for (size_t i = 0; i < g.slots.size(); ++i) slots_[g.slots[i]].whole = whole[i];
  }
}

void Unit::before_backward(const std::shared_ptr<UnitPass>& pass, size_t at) {
  if (const uint64_t backward = Tape::current().outermost; pass->backward != backward) {
    pass->backward = backward;
    queue_final_callback([pass] {
      for (const auto& unit : pass->begun) unit->release();
    });
  }
  on(UnitEvent::backward_begins);
  for (const Group& g : groups_) {
    if (g.parameters) g.parameters->finish();
  }
  start(backward_prefetch, at > 0 && at <= pass->ended.size() ? pass->ended[at - 1].get() : nullptr,
        nullptr);
}

// Backward does not look at members: the modules may be gone.
void Unit::start(const std::optional<UnitList>& wished, Unit* next, UnitPass* forward) {
  const auto gather = [forward](Unit& unit) {
    forward ? unit.prefetch() : unit.on(UnitEvent::prefetch);
  };
  if (!wished) {
    if (next && forward) forward->ahead.push_back(next->shared_from_this());
    if (next) gather(*next);
    return;
  }
  for (const auto& unit : *wished) {
    if (const auto other = unit.lock()) gather(*other);
  }
}

void Unit::prefetch() {
  refresh_at_rest();
  on(UnitEvent::prefetch);
}

void Unit::hold() {
  refresh_at_rest();
  on(UnitEvent::hold);
}

void Unit::on(UnitEvent event) {
  const UnitTransition to = unit_transition(state_, event);
  state_ = to.next;
  for (const Group& g : groups_) {
    if (!g.parameters) continue;
    switch (to.action) {
      case UnitAction::none: break;
      case UnitAction::gather: gather(*g.parameters); break;
      case UnitAction::release: g.parameters->release(); break;
      case UnitAction::release_after_forward: g.parameters->release_after_forward(); break;
    }
  }
}

void Unit::gather(WholeParameters& parameters) const {
  const InOwnName named(*this);
  parameters.gather();
}

int64_t Unit::whole_bytes() const {
  int64_t bytes = 0;
  for (const Group& g : groups_) bytes += g.parameters ? g.parameters->bytes() : 0;
  return bytes;
}

void Unit::release_after_forward() {
  on(Context::current().grad_enabled ? UnitEvent::reshard_after_forward : UnitEvent::release);
}

void Unit::refresh_at_rest() {
  if (path_.empty()) path_ = modules_.front()->name();  // it has not run: the last part
  if (!swapped_ && opened_ == 0) refresh();
}

// A pass may have put another tensor in the parameter's place, frozen it, or moved it.
void Unit::refresh() {
  bool same = !groups_.empty();
  for (Slot& s : slots_) {
    const Tensor& now = *s.members[0];
    const TensorImpl& t = now.impl();
    const Known known{now.handle().get(), t.layout, t.meta.dtype, t.meta.device, t.requires_grad};
    same = same && known == s.known;
    s.known = known;
    s.parameter = now;
  }
  if (!same) make_groups();
}

void Unit::make_groups() {
  groups_.clear();
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Tensor& p = slots_[i].parameter;
    const auto alike = [&](const Group& g) {
      const Tensor& q = slots_[g.slots[0]].parameter;
      const auto mesh = [](const Tensor& t) {
        return t.is_distributed() ? tessera::detail::layout_of(t, "parameters").mesh() : Mesh();
      };
      return q.dtype() == p.dtype() && q.device() == p.device() &&
             q.requires_grad() == p.requires_grad() && mesh(q) == mesh(p);
    };
    auto group = std::ranges::find_if(groups_, alike);
    if (group == groups_.end())
      group = groups_.insert(group, Group{{}, nullptr, p.requires_grad()});
    group->slots.push_back(i);
  }
  for (Group& g : groups_) {
    std::vector<Tensor> parameters;
    for (const size_t i : g.slots) parameters.push_back(slots_[i].parameter);
    g.parameters = make_(std::move(parameters));
  }
}

void Unit::check_values() const {
  std::string missing;
  size_t count = 0;
  for (Module* module : modules_) {
    for (const NamedParameter& p : named_parameters(*module)) {
      if (!p.tensor.device().is_meta()) continue;
      if (++count <= 8) missing += (missing.empty() ? "" : ", ") + p.name;
    }
  }
  if (count == 0) return;
  fail<UsageError>(options_.pass, counted(count, "parameter"), count == 1 ? " has" : " have",
                   " no values yet (", missing, count > 8 ? ", ..." : "",
                   "): call nn::initialize(model, seed, nn::laid_out(model, mesh)) or nn::load "
                   "before the first forward");
}

namespace {

class FreeVisitor final : public Visitor {
 public:
  FreeVisitor(FreeMembers& found, const std::function<bool(const std::string&, const Tensor&)>& t)
      : found_(found), takes_(t) {}
  void on_parameter(const std::string& path, Tensor& p, const Init&) override {
    if (!is_floating(p.dtype())) return;
    const std::string name = prefix.empty() ? path : concat(prefix, '.', path);
    if (takes_ && !takes_(name, p)) return;
    const auto known = std::ranges::find_if(
        found_.slots, [&](const Unit::Slot& s) { return s.parameter.handle() == p.handle(); });
    if (known != found_.slots.end()) known->members.push_back(&p);
    else found_.slots.push_back({{&p}, name, p});
  }
  void on_buffer(const std::string&, Tensor& b, const Init&, bool) override {
    found_.buffers.push_back(&b);
  }
  bool on_module(const std::string&, Module& m) override {
    if (const auto* note = m.attached<UnitNote>(); note && !note->unit.expired()) return false;
    found_.inside.push_back(&m);
    return true;
  }
  std::string prefix;

 private:
  FreeMembers& found_;
  const std::function<bool(const std::string&, const Tensor&)>& takes_;
};

}  // namespace

FreeMembers free_members(std::span<Module* const> modules,
                         const std::function<bool(const std::string&, const Tensor&)>& takes) {
  FreeMembers found;
  FreeVisitor visitor(found, takes);
  for (Module* module : modules) {
    visitor.prefix = modules.size() > 1 ? module->name() : std::string();
    visitor.walk(*module);
  }
  // Weights without the biases between them, so that those of queries, keys and values are one
  // view.
  std::stable_partition(found.slots.begin(), found.slots.end(),
                        [](const Unit::Slot& s) { return s.parameter.rank() > 1; });
  return found;
}

std::string name_of(const Module& module) {
  return module.name().empty() ? type_name(module) : module.name();
}

}  // namespace tessera::nn::detail
