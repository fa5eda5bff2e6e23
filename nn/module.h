// SPDX-License-Identifier: Apache-2.0
// Module: a part of a model. It lists its members once, in visit(); parameters, initialisation,
// plans and checkpoints are visitors over that list. Parameters are made on the meta device and get
// bytes when they are initialised, in place, so that a model can be planned before it exists and
// each rank can make only its own piece. What wraps a module (hooks, checkpointing, parameters in
// another precision) hangs on it, so that paths never change.
#pragma once

#include "tessera/autograd/checkpoint.h"
#include "tessera/core/context.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/fill/fill.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
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
    std::function<void(const Module&, TensorList& inputs)>;  ///< may replace them
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
  /// Lists parameters, buffers and children by name, in a fixed order.
  virtual void visit(Visitor& visitor) = 0;
  /// The name that the parent listed this module under (`wq`, `layers.3`); empty for a root.
  [[nodiscard]] const std::string& name() const { return name_; }

  HookHandle register_forward_pre_hook(ForwardPreHook hook);
  HookHandle register_forward_hook(ForwardHook hook);
  HookHandle register_backward_hook(BackwardHook hook);
  HookHandle register_around_hook(AroundHook hook);
  /// Forward is checkpointed by these options from now on; none: it is not.
  void set_checkpoint(std::optional<CheckpointOptions> options);
  /// Whether anything hangs on it: who computes for a module must then go through its run_all.
  [[nodiscard]] bool is_wrapped() const { return hooks_ != nullptr; }
  /// Runs `body` as this module's forward, through what hangs on it: for a caller that fuses a
  /// module's work with its own. `body` may run again during backward: it captures by value what
  /// does not outlive the graph.
  template <class F> [[nodiscard]] TensorList run_all(const TensorList& inputs, F body) const {
    const ModuleScope here(name_);
    return hooks_ ? run_hooked(inputs, std::move(body)) : body(inputs);
  }

 protected:
  /// What forward is made of: names the module in errors, anomaly mode and random keys, and runs
  /// `body` through what hangs on the module. `body` may run again during backward: it captures by
  /// value what is not a member.
  template <class F> [[nodiscard]] Tensor run(const Tensor& x, F body) const {
    const ModuleScope here(name_);
    if (!hooks_) return body(x);
    return run_hooked({x},
                      [body = std::move(body)](Tensors in) { return TensorList{body(in[0])}; })[0];
  }

 private:
  friend class Visitor;
  struct Hooks;
  Hooks& hooks();
  TensorList run_hooked(TensorList inputs, CheckpointedFunction body) const;
  std::string name_;
  std::unique_ptr<Hooks> hooks_;
};

/// Walks a module tree. Names given to the virtual functions are full paths
/// (`layers.3.attention.wq.weight`).
class TESSERA_API Visitor {
 public:
  virtual ~Visitor() = default;
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
  template <class M>
  void children(std::string_view name, std::vector<std::unique_ptr<M>>& modules) {
    for (size_t i = 0; i < modules.size(); ++i) {
      if (modules[i]) child(concat(name, '.', i), *modules[i]);
    }
  }

 private:
  [[nodiscard]] std::string join(std::string_view name) const;
  std::string path_;
};

}  // namespace tessera::nn
