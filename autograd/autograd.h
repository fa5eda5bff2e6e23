// SPDX-License-Identifier: Apache-2.0
// Reverse-mode autograd: Session, backward, grad, hooks, saved-tensor hooks and user-defined
// functions. Ops record a graph while they run (except under NoGrad); backward walks it from the
// latest op.
#pragma once

#include "tessera/autograd/tape.h"
#include "tessera/core/context.h"
#include "tessera/core/scopes.h"

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// A Context with a tape: a program creates one on each rank before it uses Tessera.
class Session {
 public:
  explicit Session(const Context::Options& options = {}) : context_(options) {
    context_.recorder = &tape_;
  }
  [[nodiscard]] Context& context() { return context_; }

 private:
  Tape tape_;
  Context context_;
};

struct BackwardOptions {
  Tensor gradient = {};       ///< of the output; optional for a one-element output
  bool retain_graph = false;  ///< keep saved tensors for another backward
  bool create_graph =
      false;  ///< record backward itself, for gradients of gradients (keeps saved tensors too)
};

/// Accumulates d output / d leaf into grad() of every leaf that requires grad.
/// AutogradError: nothing requires grad, no gradient for an output of more than one element, second
/// backward of a graph.
TESSERA_API void backward(const Tensor& output, const BackwardOptions& options = {});

struct GradOptions {
  std::vector<Tensor> grad_outputs = {};  ///< one per output; may be empty for one-element outputs
  bool retain_graph = false;
  bool create_graph = false;
  bool allow_unused =
      false;  ///< the gradient of an input that the outputs do not depend on is undefined
};

/// d outputs / d inputs, without touching grad(). Inputs may be leaves or results.
TESSERA_API std::vector<Tensor> grad(const std::vector<Tensor>& outputs,
                                     const std::vector<Tensor>& inputs,
                                     const GradOptions& options = {});

/// Handle of a hook. remove() unregisters the hook; destroying the handle does not.
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(std::shared_ptr<bool> active) : active_(std::move(active)) {}
  void remove() {
    if (active_) *active_ = false;
  }

 private:
  std::shared_ptr<bool> active_;
};

/// The hook runs when the gradient of `t` is complete, before it is used; a defined result replaces
/// the gradient. On a leaf, it gets the gradient of each backward pass alone, before that is added
/// to grad(), so once for each micro-batch.
TESSERA_API HookHandle register_hook(const Tensor& t, GradHook hook);
/// The hook runs after this backward's gradient was added to the leaf's grad().
TESSERA_API HookHandle register_post_accumulate_hook(const Tensor& leaf,
                                                     std::function<void(const Tensor& leaf)> hook);
/// The hook runs after the op that made `t` has computed the gradients of its inputs.
TESSERA_API HookHandle register_node_hook(const Tensor& t, NodePostHook hook);
/// The hook runs once in each backward, when the gradients of all participating `tensors` are
/// complete (at the end at the latest).
TESSERA_API HookHandle register_all_gradients_hook(
    const std::vector<Tensor>& tensors, std::function<void(const std::vector<Tensor>& grads)> hook);
/// The callback runs once when the outermost running backward ends; UsageError outside backward.
TESSERA_API void queue_final_callback(std::function<void()> callback);

/// Ops recorded during its lifetime form a region of the graph. Each backward pass calls `before`
/// ahead of the first of them that it runs, and `after` when the last of them has run and the
/// leaves have the gradients that came from them. So both hold where inputs need no gradient, where
/// an output is unused, and where a result left the scope on another way. Regions nest: the outer
/// one begins first and ends last. Neither callback is called in a pass that runs none of the ops.
class TESSERA_API BackwardRegion {
 public:
  BackwardRegion(std::function<void()> before, std::function<void()> after);
  /// Goes on with a region that was open before.
  explicit BackwardRegion(Ref<Region> region);
  ~BackwardRegion();
  BackwardRegion(const BackwardRegion&) = delete;
  BackwardRegion& operator=(const BackwardRegion&) = delete;
  [[nodiscard]] const Ref<Region>& region() const { return region_; }

 private:
  Ref<Region> region_;
  Ref<Region> outer_;
};

/// During its lifetime, tensors saved for backward pass through `pack`, and later through `unpack`
/// when backward needs them.
class TESSERA_API SavedTensorHooks {
 public:
  SavedTensorHooks(PackHook pack, UnpackHook unpack);
  ~SavedTensorHooks();
  SavedTensorHooks(const SavedTensorHooks&) = delete;
  SavedTensorHooks& operator=(const SavedTensorHooks&) = delete;
};

/// State of a user-defined function between forward and backward.
class TESSERA_API FunctionContext {
 public:
  void save(std::vector<Tensor> tensors);
  [[nodiscard]] std::vector<Tensor> saved() const;
  [[nodiscard]] const Needs& needs() const { return needs_; }
  std::any data;  ///< anything else

 private:
  friend class FunctionNode;
  std::vector<SavedTensor> saved_;
  Needs needs_;
  std::string name_;
  bool released_ = false;
};

struct Function {
  std::string name;
  std::function<TensorList(FunctionContext&, Tensors inputs)> forward;  ///< runs without recording
  std::function<Grads(FunctionContext&, const Grads& dy)>
      backward;  ///< one gradient per input; undefined = zero. May be under way (core/pending.h),
                 ///< and parts of one buffer (carve): a leaf then keeps them without waiting or
                 ///< copying
  /// Backward runs in each pass that reaches the function, also if none of its outputs has a
  /// gradient (all of dy is undefined then): for a function that communicates, which ranks must not
  /// skip one by one.
  bool always = false;
};

/// Runs a user-defined function and records it as one node.
TESSERA_API TensorList apply(const Function& function, const std::vector<Tensor>& inputs);
/// `outputs` as aliases. A backward through one of them also reaches the graph of `others`, which
/// get no gradient from here: so functions with `always` run there at their place, the latest
/// recorded first, whether or not this rank used their results.
TESSERA_API TensorList reaching(const std::vector<Tensor>& outputs,
                                const std::vector<Tensor>& others);

}  // namespace tessera
