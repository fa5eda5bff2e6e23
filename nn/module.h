// SPDX-License-Identifier: Apache-2.0
// Module: a part of a model. It lists its members once, in visit(); parameters, initialisation,
// plans and checkpoints are visitors over that list. Parameters are created on the meta device and
// allocated in place when they are initialised, so that a model can be planned without memory and
// each rank allocates only its shard. Wrappers (hooks, checkpointing, mixed precision) are attached
// to a module, so that paths never change.
#pragma once

#include "tessera/autograd/checkpoint.h"
#include "tessera/core/scopes.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/nn/tensor_args.h"

#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace tessera::nn {

/// Initialisation of a parameter. Values depend only on (seed, parameter name, element index).
struct Init {
  op::Distribution distribution = op::Distribution::normal;
  double mean = 0, std = 0, cut = 0;  // cut: truncated normals lie within mean +- cut * std
  static Init constant(double value) { return {op::Distribution::normal, value, 0, 0}; }
  static Init normal(double std) { return {op::Distribution::normal, 0, std, 0}; }
  /// Truncated at three standard deviations, as torchtitan's output layer.
  static Init truncated_normal(double std) {
    return {op::Distribution::truncated_normal, 0, std, 3};
  }
};

/// A parameter on the meta device that requires grad: the initial state of members.
inline Tensor parameter(const Shape& shape, DType dtype) {
  return empty(shape, dtype, kMeta).set_requires_grad();
}

class Visitor;
class Module;

/// Hooks of a module, while it lives. They run with its forward, outside its checkpoint; hooks of
/// modules inside a checkpointed module run again in recompute.
using ForwardPreHook =
    std::function<void(const Module&, TensorList& inputs)>;  ///< may replace inputs
using ForwardHook = std::function<void(const Module&, Tensors inputs,
                                       TensorList& outputs)>;  ///< may replace outputs
/// Runs before the first op of a backward through the module, and so before recompute.
using PreBackwardHook = std::function<void(const Module&)>;
/// Runs after the last op of a backward through the module: the parameters have the gradients of
/// this call. Gets those of the inputs and outputs that need one; a list is empty if none does, or
/// if none has got one.
using BackwardHook = std::function<void(const Module&, const Grads& inputs, const Grads& outputs)>;
/// Runs instead of forward and calls it; also in recompute.
using AroundHook =
    std::function<TensorList(const Module&, const CheckpointedFunction& forward, Tensors inputs)>;

class TESSERA_API Module {
 public:
  Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  virtual ~Module();
  /// Lists parameters, buffers and children by name, in a fixed order. Only visitors call it:
  /// `visitor.walk(module)`. A tensor that it leaves out has no name: nothing initialises, moves,
  /// shards, updates or saves it. On the meta device the first forward of an initialised model is
  /// an error; one that was made with values computes on, and stays as it is.
  virtual void visit(Visitor& visitor) = 0;
  /// The name that the parent listed this module under (`wq`, `layers.3`); empty for a root.
  [[nodiscard]] const std::string& name() const { return name_; }
  /// The text in this module's brackets in the printed tree, such as `in_features=8,
  /// out_features=32, bias=True`. Empty: the dtypes and shapes of its own parameters.
  [[nodiscard]] virtual std::string extra_repr() const { return {}; }

  /// Converts the floating parameters, their gradients and the floating buffers to `dtype`, in
  /// place: their handles stay valid. Optimizers keep their states, so create them afterwards.
  /// Returns the module itself. DTypeError unless dtype is floating.
  Module& to(DType dtype);
  /// Moves parameters, gradients and buffers to `device`, in place as above. DeviceError names an
  /// uninitialised parameter; on the meta device all lose their bytes.
  Module& to(Device device);
  /// Clears the gradients of all parameters.
  void zero_grad();

  /// Sets training mode of this module and its descendants, which Dropout reads; initially true.
  void train(bool on = true);
  void eval() { train(false); }
  [[nodiscard]] bool is_training() const { return training_; }

  HookHandle register_forward_pre_hook(ForwardPreHook hook);
  HookHandle register_forward_hook(ForwardHook hook);
  HookHandle register_pre_backward_hook(PreBackwardHook hook);
  HookHandle register_backward_hook(BackwardHook hook);
  HookHandle register_around_hook(AroundHook hook);
  /// Enables activation checkpointing of forward with these options; none: disables it.
  void set_checkpoint(std::optional<CheckpointOptions> options);
  /// What a pass over modules (a parallelisation) notes about this one, by type; null if nothing.
  template <class T> [[nodiscard]] T* attached() const {
    for (const auto& [key, value] : attached_) {
      if (key == &kAttachmentKey<T>) return static_cast<T*>(value.get());
    }
    return nullptr;
  }
  /// Replaces the note of this type.
  template <class T> void attach(std::shared_ptr<T> note) {
    for (auto& [key, value] : attached_) {
      if (key == &kAttachmentKey<T>) return void(value = std::move(note));
    }
    attached_.emplace_back(&kAttachmentKey<T>, std::move(note));
  }
  /// Whether it has hooks, a checkpoint or mixed precision: its computation must then use `run`.
  [[nodiscard]] bool is_wrapped() const { return hooks_ != nullptr; }

  /// Runs `body(args...)` as this module's forward: errors and random keys of its ops have the
  /// module's path, and hooks see arguments and results. For functions besides forward
  /// (`run(&Model::loss_of, tokens, targets)`) and for callers that fuse a module's computation
  /// with their own. Body is a member function of the module or a lambda without captures, since it
  /// may run again in backward. Arguments that are tensors (or arrays, pairs, tuples, lists of
  /// them) are the inputs that hooks see; others are copied if the module is wrapped, so a pointer
  /// must outlive the graph. The result is a Tensor, or an array, pair, tuple, struct of up to
  /// four, or list of tensors. UsageError: the module runs inside one that does not list it in
  /// visit().
  template <class F, class... Args> [[nodiscard]] auto run(F body, const Args&... args) const {
    static_assert(std::is_member_function_pointer_v<F> || std::is_empty_v<F>,
                  "body may run again in backward, so it captures nothing: pass what it needs as "
                  "arguments, or a member function of the module");
    using Result = std::decay_t<decltype(run_body(body, args...))>;
    static_assert(detail::TensorResult<Result>,
                  "the result must be a Tensor, or an array, pair, tuple, struct or list of them, "
                  "for hooks to see it");
    const Running here(*this);
    try {
      if (!hooks_) return run_body(body, args...);
      return detail::from_list<Result>(run_wrapped(body, args...));
    } catch (Error& error) {
      explain(error);
      throw;
    }
  }

 protected:
  /// For members and elements of containers. UsageError if the module is wrapped, because its hooks
  /// would still refer to the old object.
  Module(Module&& other);

 private:
  friend class Visitor;
  friend class EvalMode;
  struct Hooks;

  // The module runs during its lifetime: its name is the last part of the path.
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

  // Not `apply`: a member of that name would hide autograd's from the members of every module.
  template <class R, class C, class... Params, class... Args>
  auto run_body(R (C::*body)(Params...) const, const Args&... args) const {
    return (static_cast<const C&>(*this).*body)(args...);
  }
  template <class F, class... Args>
  requires std::is_empty_v<F>
  static auto run_body(F body, const Args&... args) { return body(args...); }
  // Moves the inputs out of the stored arguments, so that only the checkpoint decides which of them
  // are stored.
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
          std::apply([&](const auto&... v) { return run_body(body, v...); }, values));
    });
  }

  Hooks& hooks();
  TensorList run_hooked(TensorList inputs, CheckpointedFunction body) const;
  // Records the innermost running root that was walked and returns where; a module that was not
  // walked must not run inside one.
  const Module** enter_unnamed(const Module*& outer) const;
  // Adds to an error of the module: the path, and what of its tensors has no bytes or no layout.
  void explain(Error& error) const;
  template <class T> static constexpr char kAttachmentKey = 0;
  std::string name_;
  std::unique_ptr<Hooks> hooks_;
  std::vector<std::pair<const void*, std::shared_ptr<void>>> attached_;
  bool training_ = true;
  bool listed_ = false;  // by a parent's visit(), or as the root of a walk
};

/// Base class of modules, with the module as argument: `class Block final : public Layer<Block>`.
/// An author writes visit() and `forward(...) const`; callers write `block(x, ...)`, which runs
/// forward through `Module::run`. A private forward, with `friend class Layer<Block>`, cannot be
/// called without its hooks by mistake. Its arguments are const.
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
  /// Visits `root`, whose own path is empty, and its descendants. UsageError: a path listed twice,
  /// or an empty name.
  void walk(Module& root);
  virtual void on_parameter(const std::string& /*path*/, Tensor& /*parameter*/,
                            const Init& /*init*/) {}
  virtual void on_buffer(const std::string& /*path*/, Tensor& /*buffer*/, const Init& /*init*/,
                         bool /*persistent*/) {}
  /// False: its members are skipped.
  virtual bool on_module(const std::string& /*path*/, Module& /*module*/) { return true; }
  /// True: the owner drops this member, which may be absent, before it is visited.
  virtual bool drops(const std::string& /*path*/) { return false; }

  // Called by Module::visit.
  void parameter(std::string_view name, Tensor& tensor, const Init& init);
  /// A tensor that is not a parameter; persistent ones are part of checkpoints.
  void buffer(std::string_view name, Tensor& tensor, const Init& init, bool persistent = true);
  void child(std::string_view name, Module& module);
  /// A child that may be absent.
  template <class M> void child(std::string_view name, std::optional<M>& module) {
    if (module && to_drop(name)) module.reset();
    if (module) child(name, *module);
  }
  /// The modules of a ModuleList, as `name.0`, `name.1` ...; empty indices are skipped.
  template <class List> void children(std::string_view name, List& modules) {
    for (size_t i = 0; i < modules.size(); ++i) {
      const std::string indexed = concat(name, '.', i);
      if (modules.has(i) && to_drop(indexed)) modules.remove(i);
      if (modules.has(i)) child(indexed, modules[i]);
    }
  }
  /// What `module` lists, as if this module listed it: paths do not show `module`. Its children
  /// with these paths are left out.
  void members_of(Module& module, std::span<const std::string> without = {});

 private:
  [[nodiscard]] std::string path_to(std::string_view name) const {
    return path_.empty() ? std::string(name) : concat(path_, '.', name);
  }
  [[nodiscard]] bool to_drop(std::string_view name) {
    return !passing_over_ && drops(path_to(name));
  }
  [[nodiscard]] std::string listed(std::string_view name);
  std::string path_;
  std::unordered_set<std::string> seen_;
  std::span<const std::string> without_;
  bool passing_over_ = false;
};

/// Prints the tree as PyTorch does, with the number of parameters of each module and its
/// descendants; equal neighbours of a list are folded:
///   Decoder(  # 2,320 parameters
///     (tok_embeddings): Embedding(16, 8)  # 128 parameters
///     (layers): ModuleList(  # 2,192 parameters
///       (0-1): 2 x Block(  # 1,096 parameters each
TESSERA_API std::ostream& operator<<(std::ostream& os, const Module& root);

/// Sets a module and its descendants to eval mode during its lifetime, then restores each one's
/// mode.
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
