// SPDX-License-Identifier: Apache-2.0
// Paths of visitors, and the wrappers around forward: the checkpoint is outermost, then around
// hooks, then forward. What forward records is a region of the graph, whose begin and end are the
// module's backward. Errors get the module path when they leave the innermost module, so that
// success costs nothing.
#include "tessera/nn/module.h"

#include "tessera/core/message.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/module_impl.h"

#include <cstdlib>
#include <cxxabi.h>
#include <typeinfo>
#include <utility>

namespace tessera::nn {

template <class F> struct Hook {
  F call;
  std::shared_ptr<bool> active = std::make_shared<bool>(true);
};

struct Module::Hooks {
  std::vector<Hook<ForwardPreHook>> pre;
  std::vector<Hook<ForwardHook>> post;
  std::vector<Hook<PreBackwardHook>> pre_backward;
  std::vector<Hook<BackwardHook>> backward;
  std::vector<Hook<AroundHook>> around;
  std::optional<CheckpointOptions> checkpoint;
  std::shared_ptr<const Module*> module;  // expires with it: a graph may live longer
};

namespace {

template <class F> HookHandle keep(std::vector<Hook<F>>& list, F hook) {
  return HookHandle(list.emplace_back(Hook<F>{std::move(hook)}).active);
}

// Calls of a module's backward hooks for one forward: the region of all that it records, and, if
// gradients are to be shown, a node after it, which gets those of its outputs, and one before it,
// which gets those of its inputs.
class BackwardScope {
 public:
  BackwardScope(std::weak_ptr<const Module*> module, std::vector<Hook<PreBackwardHook>> before,
                std::vector<Hook<BackwardHook>> after)
      : seen_(after.empty() ? nullptr : std::make_shared<Seen>()),
        region_(
            [module, hooks = std::move(before)] {
              const auto there = module.lock();
              for (const auto& hook : hooks) {
                if (there && *hook.active) hook.call(**there);
              }
            },
            [module, hooks = std::move(after), seen = seen_] {
              if (!seen) return;
              const Seen now = std::exchange(*seen, {});
              const auto there = module.lock();
              for (const auto& hook : hooks) {
                if (there && *hook.active) hook.call(**there, now.inputs, now.outputs);
              }
            }) {}
  void inputs(TensorList& tensors) const {
    if (seen_) through(tensors, [seen = seen_](const Grads& g) { seen->inputs = g; });
  }
  void outputs(TensorList& tensors) const {
    if (seen_) through(tensors, [seen = seen_](const Grads& g) { seen->outputs = g; });
  }

 private:
  struct Seen {
    Grads inputs, outputs;
  };
  // Aliases of the tensors that need gradients, behind a node that shows them to `see`.
  static void through(TensorList& tensors, std::function<void(const Grads&)> see) {
    std::vector<Tensor> passed;
    std::vector<size_t> places;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].defined() || !tensors[i].requires_grad()) continue;
      passed.push_back(tensors[i]);
      places.push_back(i);
    }
    if (passed.empty()) return;
    const TensorList aliases = apply({"module",
                                      [](FunctionContext&, Tensors in) {
                                        TensorList out;
                                        for (const Tensor& t : in) out.push_back(t.detach());
                                        return out;
                                      },
                                      [see = std::move(see)](FunctionContext&, const Grads& dy) {
                                        see(dy);
                                        return dy;
                                      }},
                                     passed);
    for (size_t i = 0; i < places.size(); ++i) tensors[places[i]] = aliases[i];
  }
  std::shared_ptr<Seen> seen_;
  BackwardRegion region_;
};

}  // namespace

Module::Module() = default;
Module::~Module() = default;
Module::Module(Module&& other) : training_(other.training_) {
  if (other.hooks_ || !other.attached_.empty()) {
    fail<UsageError>("module",
                     "a module with hooks, a checkpoint or another precision cannot be moved: put "
                     "it in its place first");
  }
}

Module::Hooks& Module::hooks() {
  if (!hooks_) {
    hooks_ = std::make_unique<Hooks>();
    hooks_->module = std::make_shared<const Module*>(this);
  }
  return *hooks_;
}

HookHandle Module::register_forward_pre_hook(ForwardPreHook hook) {
  return keep(hooks().pre, std::move(hook));
}
HookHandle Module::register_forward_hook(ForwardHook hook) {
  return keep(hooks().post, std::move(hook));
}
HookHandle Module::register_pre_backward_hook(PreBackwardHook hook) {
  return keep(hooks().pre_backward, std::move(hook));
}
HookHandle Module::register_backward_hook(BackwardHook hook) {
  return keep(hooks().backward, std::move(hook));
}
HookHandle Module::register_around_hook(AroundHook hook) {
  return keep(hooks().around, std::move(hook));
}
void Module::set_checkpoint(std::optional<CheckpointOptions> options) {
  hooks().checkpoint = std::move(options);
}

namespace {
// Copies, since a hook may register another while it runs.
template <class F> std::vector<Hook<F>> active(const std::vector<Hook<F>>& hooks) {
  std::vector<Hook<F>> list;
  for (const auto& hook : hooks) {
    if (*hook.active) list.push_back(hook);
  }
  return list;
}
}  // namespace

TensorList Module::run_hooked(TensorList inputs, CheckpointedFunction body) const {
  const size_t count = inputs.size();
  for (const auto& hook : active(hooks_->pre)) hook.call(*this, inputs);
  detail::check_count("inputs", inputs.size(), count);
  std::optional<BackwardScope> scope;
  if (const Context& context = Context::current(); context.grad_enabled && context.recorder) {
    auto before = active(hooks_->pre_backward);
    auto after = active(hooks_->backward);
    if (!before.empty() || !after.empty()) {
      scope.emplace(hooks_->module, std::move(before), std::move(after));
      scope->inputs(inputs);
    }
  }
  for (const auto& hook : active(hooks_->around)) {
    body = [this, count, around = hook.call, inner = std::move(body)](Tensors in) {
      const auto checked = [&inner, count](Tensors given) {
        detail::check_count("inputs", given.size(), count);
        return inner(given);
      };
      return around(*this, checked, in);
    };
  }
  TensorList out = hooks_->checkpoint
                       ? checkpoint(body, {inputs.begin(), inputs.end()}, *hooks_->checkpoint)
                       : body(inputs);
  if (scope) scope->outputs(out);
  for (const auto& hook : active(hooks_->post)) hook.call(*this, inputs, out);
  return out;
}

Module& detail::visitable(const Module& module) { return const_cast<Module&>(module); }

std::string detail::type_name(const Module& module) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(typeid(module).name(), nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : typeid(module).name();
}

namespace {

struct WalkedRoot {
  const Module* running = nullptr;
};

// Explains a tensor on meta, or a plain one beside distributed ones, by the tensors that the module
// lists; empty if they do not. Whether the model runs on shapes alone is not known, so the text
// names both ways on.
std::string places_of_listed(Module& module, const Error& error) {
  const std::string_view text = error.what();
  const bool bytes = dynamic_cast<const DeviceError*>(&error) && text.find("meta") != text.npos;
  const bool layouts =
      dynamic_cast<const LayoutError*>(&error) && text.find("a plain tensor") != text.npos;
  if (!bytes && !layouts) return {};
  class Suspect final : public Visitor {
   public:
    explicit Suspect(bool of_bytes) : bytes_(of_bytes) {}
    void on_parameter(const std::string& path, Tensor& t, const Init&) override { look(path, t); }
    void on_buffer(const std::string& path, Tensor& t, const Init&, bool) override {
      look(path, t);
    }
    std::string name;
    Tensor found;
    bool any = false;

   private:
    void look(const std::string& at, const Tensor& t) {
      if (!t.defined()) return;
      any = true;
      if (found.defined() || !(bytes_ ? t.device().is_meta() : !t.is_distributed())) return;
      name = at;
      found = t;
    }
    bool bytes_;
  } suspect(bytes);
  suspect.walk(module);
  if (!suspect.any) return {};
  if (!suspect.found.defined()) {
    return concat("; visit() lists no tensor that is ", bytes ? "on meta" : "plain",
                  ": this one is an input, a constant, or a member that visit() leaves out");
  }
  if (!suspect.found.device().is_meta()) return {};
  return concat(
      "; visit() lists ", suspect.name,
      ", which has no bytes: call nn::initialize or nn::load; in a dry run, read no values and "
      "make every other tensor on the meta device too");
}

}  // namespace

const Module** Module::enter_unnamed(const Module*& outer) const {
  Context& context = Context::current();
  const Module*& running = context.state<WalkedRoot>().running;
  const std::string parent = listed_ ? "" : joined_path(context.module_path);
  if (!listed_ && running) Visitor().walk(detail::visitable(*running));  // it may have grown
  if (listed_) {
    if (!name_.empty()) return nullptr;
    outer = std::exchange(running, this);
    return &running;
  }
  if (!running && parent.empty()) return nullptr;  // by itself, or in a tree never walked
  fail<UsageError>("module", "a ", detail::type_name(*this), " runs inside ",
                   parent.empty() ? "the root module" : "a module",
                   " whose visit() does not list it, so that its name, parameters and mode are "
                   "unknown; add visitor.child(\"its name\", its member)");
}

void Module::explain(Error& error) const {
  std::string text = error.what();
  const auto says = [&text](const std::string& part) { return text.find(part) != text.npos; };
  const std::vector<std::string>& parts = Context::current().module_path;
  // In a tree that was never walked, the root alone knows names.
  if ((listed_ || parts.size() == 1) && !says("; visit() lists "))
    text += places_of_listed(detail::visitable(*this), error);
  const std::string path = joined_path(parts);
  // The path that an inner module has added begins with the path of this one.
  if (!says(" (in " + path)) text += in_module(path);
  if (text != error.what()) static_cast<std::runtime_error&>(error) = std::runtime_error(text);
}

void Module::train(bool on) {
  class Set final : public Visitor {
   public:
    explicit Set(bool to) : on_(to) {}
    bool on_module(const std::string&, Module& m) override {
      m.training_ = on_;
      return true;
    }

   private:
    bool on_;
  } set(on);
  training_ = on;
  set.walk(*this);
}

EvalMode::EvalMode(Module& root) {
  class Trained final : public Visitor {
   public:
    explicit Trained(std::vector<Module*>& list) : list_(list) {}
    bool on_module(const std::string&, Module& m) override {
      if (m.is_training()) list_.push_back(&m);
      return true;
    }

   private:
    std::vector<Module*>& list_;
  } trained(trained_);
  if (root.is_training()) trained_.push_back(&root);
  trained.walk(root);
  for (Module* m : trained_) m->training_ = false;
}

EvalMode::~EvalMode() {
  for (Module* m : trained_) m->training_ = true;
}

void Visitor::walk(Module& root) {
  path_.clear();
  seen_.clear();
  passing_over_ = false;
  root.listed_ = true;
  root.visit(*this);
}

std::string Visitor::listed(std::string_view name) {
  if (name.empty())
    fail<UsageError>("visit", "a member of ", path_.empty() ? "the root module" : path_,
                     " is listed under an empty name");
  std::string path = path_to(name);
  if (!seen_.insert(path).second) {
    fail<UsageError>("visit", path,
                     " is listed twice; each parameter, buffer and child needs its own name");
  }
  return path;
}

void Visitor::parameter(std::string_view name, Tensor& tensor, const Init& init) {
  const std::string path = listed(name);
  if (!passing_over_) on_parameter(path, tensor, init);
}

void Visitor::buffer(std::string_view name, Tensor& tensor, const Init& init, bool persistent) {
  const std::string path = listed(name);
  if (!passing_over_) on_buffer(path, tensor, init, persistent);
}

// Skipped members get their names too.
void Visitor::child(std::string_view name, Module& module) {
  if (std::ranges::find(without_, path_to(name)) != without_.end()) return;
  module.name_ = name;
  module.listed_ = true;
  const std::string outer = std::exchange(path_, listed(name));
  const bool before = passing_over_;
  passing_over_ = before || !on_module(path_, module);
  module.visit(*this);
  passing_over_ = before;
  path_ = outer;
}

void Visitor::members_of(Module& module, std::span<const std::string> without) {
  module.listed_ = true;
  const bool before = passing_over_;
  const auto outer = std::exchange(without_, without);
  passing_over_ = before || !on_module(path_, module);
  module.visit(*this);
  passing_over_ = before;
  without_ = outer;
}

}  // namespace tessera::nn
