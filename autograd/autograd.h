// SPDX-License-Identifier: Apache-2.0
// Reverse-mode autograd: Session, backward, grad, hooks, saved-tensor hooks and user-defined
// functions. A graph is recorded while ops run (unless NoGrad lives) and walked by backward, latest
// op first.
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

/// What a program holds while it uses Tessera on one rank: a Context with a tape.
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
  Tensor gradient = {};       ///< of the output; may be left out for a one-element output
  bool retain_graph = false;  ///< keep saved tensors for another backward
  bool create_graph =
      false;  ///< record backward itself, for gradients of gradients (keeps saved tensors too)
};

/// Accumulates d output / d leaf into grad() of every leaf that requires grad.
/// AutogradError: nothing requires grad, no gradient given for an output of more than one element,
/// second run.
TESSERA_API void backward(const Tensor& output, const BackwardOptions& options = {});

struct GradOptions {
  std::vector<Tensor> grad_outputs = {};  ///< one per output; may be empty for one-element outputs
  bool retain_graph = false;
  bool create_graph = false;
  bool allow_unused =
      false;  ///< an input that the outputs do not depend on gives an undefined tensor
};

/// d outputs / d inputs, without touching grad(). Inputs may be leaves or results.
TESSERA_API std::vector<Tensor> grad(const std::vector<Tensor>& outputs,
                                     const std::vector<Tensor>& inputs,
                                     const GradOptions& options = {});

/// Keeps a hook; remove() ends it. Letting the handle go does not.
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

/// Runs when the gradient of `t` is complete, before it is used; a defined result replaces the
/// gradient.
TESSERA_API HookHandle register_hook(const Tensor& t, GradHook hook);
/// Runs after a leaf's grad() holds this backward's gradient.
TESSERA_API HookHandle register_post_accumulate_hook(const Tensor& leaf,
                                                     std::function<void(const Tensor& leaf)> hook);
/// Runs after the op that made `t` has computed its inputs' gradients.
TESSERA_API HookHandle register_node_hook(const Tensor& t, NodePostHook hook);
/// Runs once in each backward, when the gradients of all `tensors` that take part have arrived (at
/// its end at latest).
TESSERA_API HookHandle register_all_gradients_hook(
    const std::vector<Tensor>& tensors, std::function<void(const std::vector<Tensor>& grads)> hook);
/// Runs once when the outermost backward under way ends; UsageError outside one.
TESSERA_API void queue_final_callback(std::function<void()> callback);

/// While it lives, tensors saved for backward pass through `pack`, and through `unpack` when
/// backward needs them.
class TESSERA_API SavedTensorHooks {
 public:
  SavedTensorHooks(PackHook pack, UnpackHook unpack);
  ~SavedTensorHooks();
  SavedTensorHooks(const SavedTensorHooks&) = delete;
  SavedTensorHooks& operator=(const SavedTensorHooks&) = delete;
};

/// What a user-defined function keeps between forward and backward.
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
  std::function<TensorList(FunctionContext&, Tensors inputs)> forward;  ///< runs unrecorded
  std::function<Grads(FunctionContext&, const Grads& dy)>
      backward;  ///< one gradient per input; undefined = zero
};

/// Runs a user-defined function and records it as one node.
TESSERA_API TensorList apply(const Function& function, const std::vector<Tensor>& inputs);

}  // namespace tessera
