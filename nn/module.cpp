// SPDX-License-Identifier: Apache-2.0
// Visitors' paths, and how forward runs through what hangs on a module: checkpoint outside, then
// what wraps forward, then forward itself.
#include "tessera/nn/module.h"

#include "tessera/kernels/views/views.h"

#include <utility>

namespace tessera::nn {

template <class F> struct Hook {
  F call;
  std::shared_ptr<bool> active = std::make_shared<bool>(true);
};

struct Module::Hooks {
  std::vector<Hook<ForwardPreHook>> pre;
  std::vector<Hook<ForwardHook>> post;
  std::vector<Hook<BackwardHook>> backward;
  std::vector<Hook<AroundHook>> around;
  std::optional<CheckpointOptions> checkpoint;
};

namespace {

template <class F> HookHandle keep(std::vector<Hook<F>>& list, F hook) {
  return HookHandle(list.emplace_back(Hook<F>{std::move(hook)}).active);
}

// Nodes on both sides of a module: the one behind it sees the gradients of its outputs, the one
// before it those of its inputs, and calls the hooks. Where no input needs a gradient, the first
// calls them.
class BackwardPair {
 public:
  BackwardPair(const Module& module, std::vector<Hook<BackwardHook>> hooks)
      : state_(std::make_shared<State>(State{&module, std::move(hooks), {}, false})) {}
  void inputs(TensorList& tensors) const {
    state_->before = through(tensors, [state = state_](const Grads& g) { state->finish(g); });
  }
  void outputs(TensorList& tensors) const {
    (void)through(tensors, [state = state_](const Grads& g) {
      state->outputs = g;
      if (!state->before) state->finish({});
    });
  }

 private:
  struct State {
    const Module* module;
    std::vector<Hook<BackwardHook>> hooks;
    Grads outputs;
    bool before;  // whether a node stands before the module
    void finish(const Grads& inputs) {
      for (const auto& hook : hooks) {
        if (*hook.active) hook.call(*module, inputs, outputs);
      }
      outputs = {};
    }
  };
  // Aliases of the tensors that need gradients, behind a node that shows them to `see`.
  static bool through(TensorList& tensors, std::function<void(const Grads&)> see) {
    std::vector<Tensor> passed;
    std::vector<size_t> places;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].defined() || !tensors[i].requires_grad()) continue;
      passed.push_back(tensors[i]);
      places.push_back(i);
    }
    if (passed.empty()) return false;
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
    return true;
  }
  std::shared_ptr<State> state_;
};

}  // namespace

Module::Module() = default;
Module::~Module() = default;

Module::Hooks& Module::hooks() {
  if (!hooks_) hooks_ = std::make_unique<Hooks>();
  return *hooks_;
}

HookHandle Module::register_forward_pre_hook(ForwardPreHook hook) {
  return keep(hooks().pre, std::move(hook));
}
HookHandle Module::register_forward_hook(ForwardHook hook) {
  return keep(hooks().post, std::move(hook));
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
  for (const auto& hook : active(hooks_->pre)) hook.call(*this, inputs);
  std::optional<BackwardPair> pair;
  if (auto backward = active(hooks_->backward);
      !backward.empty() && Context::current().grad_enabled) {
    pair.emplace(*this, std::move(backward));
    pair->inputs(inputs);
  }
  for (const auto& hook : active(hooks_->around)) {
    body = [this, around = hook.call, inner = std::move(body)](Tensors in) {
      return around(*this, inner, in);
    };
  }
  TensorList out = hooks_->checkpoint
                       ? checkpoint(body, {inputs.begin(), inputs.end()}, *hooks_->checkpoint)
                       : body(inputs);
  if (pair) pair->outputs(out);
  for (const auto& hook : active(hooks_->post)) hook.call(*this, inputs, out);
  return out;
}

std::string Visitor::join(std::string_view name) const {
  return path_.empty() ? std::string(name) : concat(path_, '.', name);
}

void Visitor::parameter(std::string_view name, Tensor& tensor, const Init& init) {
  on_parameter(join(name), tensor, init);
}

void Visitor::buffer(std::string_view name, Tensor& tensor, const Init& init, bool persistent) {
  on_buffer(join(name), tensor, init, persistent);
}

void Visitor::child(std::string_view name, Module& module) {
  module.name_ = name;
  const std::string outer = std::exchange(path_, join(name));
  if (on_module(path_, module)) module.visit(*this);
  path_ = outer;
}

}  // namespace tessera::nn
