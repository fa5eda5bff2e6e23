// SPDX-License-Identifier: Apache-2.0
// Module: a part of a model. It lists its members once, in visit(); parameters, initialisation,
// plans and checkpoints are visitors over that list. Parameters are made on the meta device and get
// bytes when they are initialised, in place, so that a model can be planned before it exists and
// each rank can make only its own piece. What wraps a module (hooks, checkpointing, parameters in
// another precision) hangs on it, so that paths never change.
#pragma once

#include "tessera/autograd/checkpoint.h"
#include "tessera/core/scopes.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/nn/tensor_args.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace tessera::nn {

/// How a parameter is first filled. Values depend on (seed, parameter name, element index) alone.
struct Init {
  op::Distribution distribution = op::Distribution::normal;
  double mean = 0, std = 0, cut = 0;  // cut: truncated normals lie within mean +- cut * std
  static Init constant(double value) { return {op::Distribution::normal, value, 0, 0}; }
  static Init normal(double std) { return {op::Distribution::normal, 0, std, 0}; }
  /// Cut at three standard deviations, as for torchtitan's output layer.
  static Init truncated_normal(double std) {
    return {op::Distribution::truncated_normal, 0, std, 3};
  }
};

/// A parameter without bytes, on the meta device, that requires grad: what members start as.
inline Tensor parameter(const Shape& shape, DType dtype) {
  return empty(shape, dtype, kMeta).set_requires_grad();
}

class Visitor;
class Module;

/// Hooks of a module. They run with its forward, outside of its checkpoint; those of modules inside
/// a checkpointed one run again when it is computed again.
using ForwardPreHook =
    std::function<void(const Module&, TensorList& inputs)>;  ///< may replace inputs
using ForwardHook = std::function<void(const Module&, Tensors inputs,
                                       TensorList& outputs)>;  ///< may replace outputs
/// Sees the gradients of the module's inputs and outputs once those of its inputs are complete.
using BackwardHook = std::function<void(const Module&, const Grads& inputs, const Grads& outputs)>;
/// Runs in place of forward and calls it; also when a checkpoint computes it again.
using AroundHook =
    std::function<TensorList(const Module&, const CheckpointedFunction& forward, Tensors inputs)>;

class TESSERA_API Module {
 public:
  Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  virtual ~Module();
  /// Lists parameters, buffers and children by name, in a fixed order. Called by visitors alone:
  /// `visitor.walk(module)`.
  virtual void visit(Visitor& visitor) = 0;
  /// The name that the parent listed this module under (`wq`, `layers.3`); empty for a root.
  [[nodiscard]] const std::string& name() const { return name_; }

  /// Sets the mode of this module and of all below it, which Dropout reads; true at first.
  void train(bool on = true);
  void eval() { train(false); }
  [[nodiscard]] bool is_training() const { return training_; }

  HookHandle register_forward_pre_hook(ForwardPreHook hook);
  HookHandle register_forward_hook(ForwardHook hook);
  HookHandle register_backward_hook(BackwardHook hook);
  HookHandle register_around_hook(AroundHook hook);
  /// Forward is checkpointed by these options from now on; none: it is not.
  void set_checkpoint(std::optional<CheckpointOptions> options);
  /// Whether anything hangs on it: who computes for a module must then go through its `run`.
  [[nodiscard]] bool is_wrapped() const { return hooks_ != nullptr; }

  /// Runs `body(args...)` as this module's forward: its ops' errors and random keys have the
  /// module's path, and arguments and results pass through what hangs on the module. For entries
  /// besides forward (`run(&Model::loss_of, tokens, targets)`) and for callers that fuse a module's
  /// work with their own. Body is a member function of the module or captures nothing, since it may
  /// run again in backward: what it needs are arguments. Those that are tensors (or arrays, pairs,
  /// tuples, lists of them) are the inputs that hooks see; others are copied where something hangs
  /// on the module, so a pointer must outlive the graph. The result is a Tensor, an array, pair,
  /// tuple, struct of up to four or list of them. UsageError: the module runs inside one that does
  /// not list it in visit().
  template <class F, class... Args> [[nodiscard]] auto run(F body, const Args&... args) const {
    static_assert(std::is_member_function_pointer_v<F> || std::is_empty_v<F>,
                  "body may run again in backward, so it captures nothing: pass what it needs as "
                  "arguments, or a member function of the module");
    using Result = std::decay_t<decltype(apply(body, args...))>;
    static_assert(detail::TensorResult<Result>,
                  "the result must be a Tensor, or an array, pair, tuple, struct or list of them, "
                  "for hooks to see it");
    const Running here(*this);
    try {
      if (!hooks_) return apply(body, args...);
      return detail::from_list<Result>(run_wrapped(body, args...));
    } catch (Error& error) {
      explain(error);
      throw;
    }
  }

 protected:
  /// Members and elements of containers are moved into place. UsageError once something hangs on
  /// the module, which would still mean the old one.
  Module(Module&& other);

 private:
  friend class Visitor;
  friend class EvalMode;
  struct Hooks;

  // The module runs while it lives: its name is the last part of the path.
  class Running {
   public:
    explicit Running(const Module& module)
        : context_(Context::current()),
          root_(module.name_.empty() ? module.enter_unnamed(outer_) : nullptr) {
      context_.module_path.push_back(module.name_);
    }
    ~Running() {
      context_.module_path.pop_back();
      if (root_) *root_ = outer_;
    }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    Context& context_;
    const Module* outer_ = nullptr;
    const Module** root_;
  };

  template <class R, class C, class... Params, class... Args>
  auto apply(R (C::*body)(Params...) const, const Args&... args) const {
    return (static_cast<const C&>(*this).*body)(args...);
  }
  template <class F, class... Args>
  requires std::is_empty_v<F>
  static auto apply(F body, const Args&... args) { return body(args...); }
  // Inputs leave the arguments that the body keeps, so that a checkpoint alone decides what of them
  // is stored.
  template <class F, class... Args> TensorList run_wrapped(F body, const Args&... args) const {
    auto kept = std::make_tuple(detail::keep(args)...);
    TensorList inputs;
    const auto take = [&inputs](Tensor& t) { inputs.push_back(std::exchange(t, Tensor())); };
    std::apply([&](auto&... values) { (detail::each_tensor(values, take), ...); }, kept);
    return run_hooked(std::move(inputs), [this, body, kept = std::move(kept)](Tensors in) {
      auto values = kept;
      size_t at = 0;
      const auto give = [&](Tensor& t) { t = in[at++]; };
      std::apply([&](auto&... v) { (detail::each_tensor(v, give), ...); }, values);
      return detail::to_list(
          std::apply([&](const auto&... v) { return apply(body, v...); }, values));
    });
  }

  Hooks& hooks();
  TensorList run_hooked(TensorList inputs, CheckpointedFunction body) const;
  // Notes the innermost running root that was walked, and gives where; a module that was not must
  // not run inside one.
  const Module** enter_unnamed(const Module*& outer) const;
  // Adds to an error that leaves the module what it cannot know: where it arose, and whether that
  // is for want of parameters.
  void explain(Error& error) const;
  std::string name_;
  std::unique_ptr<Hooks> hooks_;
  bool training_ = true;
  bool listed_ = false;  // by a parent's visit(), or as the root of a walk
};

/// What modules derive from, with themselves as the argument: `class Block final : public
/// Layer<Block>`. An author writes visit() and `forward(...) const`; callers write `block(x, ...)`,
/// which runs forward through `Module::run`. A forward that is private, with `friend class
/// Layer<Block>`, cannot be called past the hooks by mistake. Its arguments arrive as const.
template <class Derived> class TESSERA_API Layer : public Module {
 public:
  template <class... Args> [[nodiscard]] auto operator()(const Args&... args) const {
    return run([](const Layer* self,
                  const auto&... a) { return static_cast<const Derived*>(self)->forward(a...); },
               this, args...);
  }

 private:
  friend Derived;  // no other class can name itself so
  Layer() = default;
};

/// Walks a module tree. Names given to the virtual functions are full paths
/// (`layers.3.attention.wq.weight`).
class TESSERA_API Visitor {
 public:
  virtual ~Visitor() = default;
  /// Visits `root`, whose own path is empty, and what lies below it. UsageError: a path listed
  /// twice, or an empty name.
  void walk(Module& root);
  virtual void on_parameter(const std::string& /*path*/, Tensor& /*parameter*/,
                            const Init& /*init*/) {}
  virtual void on_buffer(const std::string& /*path*/, Tensor& /*buffer*/, const Init& /*init*/,
                         bool /*persistent*/) {}
  /// False: its members are passed over.
  virtual bool on_module(const std::string& /*path*/, Module& /*module*/) { return true; }

  // What Module::visit calls.
  void parameter(std::string_view name, Tensor& tensor, const Init& init);
  /// A tensor that is no parameter; persistent ones are part of checkpoints.
  void buffer(std::string_view name, Tensor& tensor, const Init& init, bool persistent = true);
  void child(std::string_view name, Module& module);
  /// The modules of a ModuleList that are there, as `name.0`, `name.1` ...
  template <class List> void children(std::string_view name, List& modules) {
    for (size_t i = 0; i < modules.size(); ++i) {
      if (modules.has(i)) child(concat(name, '.', i), modules[i]);
    }
  }

 private:
  [[nodiscard]] std::string listed(std::string_view name);
  std::string path_;
  std::unordered_set<std::string> seen_;
  bool passing_over_ = false;
};

/// A module and all below it compute as in evaluation while it lives; then each is in the mode that
/// it was in.
class TESSERA_API EvalMode {
 public:
  explicit EvalMode(Module& root);
  ~EvalMode();
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  std::vector<Module*> trained_;
};

}  // namespace tessera::nn
