// SPDX-License-Identifier: Apache-2.0
// Registration of hooks, saved-tensor hooks, and user-defined functions.
#include "tessera/autograd/autograd.h"
#include "tessera/core/message.h"

namespace tessera {
namespace {

LeafGrad& leaf_of(const Tensor& t, std::string_view who) {
  if (!t.requires_grad() || !t.is_leaf())
    fail<AutogradError>(who, t.meta(), " is not a leaf that requires grad");
  return *t.impl().leaf;
}

Node::Hooks& hooks_of(const Tensor& t) {
  Node& node = *edge_of(t).node;
  if (!node.hooks) node.hooks = std::make_unique<Node::Hooks>();
  return *node.hooks;
}

}  // namespace

HookHandle register_hook(const Tensor& t, GradHook hook) {
  if (!t.requires_grad())
    fail<AutogradError>("register_hook", t.meta(),
                        " does not require grad: it will have no gradient");
  auto active = std::make_shared<bool>(true);
  GradHook guarded = [active, hook = std::move(hook)](const Tensor& g) {
    return *active ? hook(g) : Tensor();
  };
  if (t.is_leaf()) t.impl().leaf->hooks.push_back(std::move(guarded));
  else hooks_of(t).gradient.emplace_back(t.impl().node_output, std::move(guarded));
  return HookHandle(active);
}

HookHandle register_post_accumulate_hook(const Tensor& leaf,
                                         std::function<void(const Tensor&)> hook) {
  auto active = std::make_shared<bool>(true);
  leaf_of(leaf, "register_post_accumulate_hook")
      .post_accumulate.push_back([active, hook = std::move(hook)](const Tensor& t) {
        if (*active) hook(t);
      });
  return HookHandle(active);
}

HookHandle register_node_hook(const Tensor& t, NodePostHook hook) {
  if (!t.requires_grad() || t.is_leaf())
    fail<AutogradError>("register_node_hook", t.meta(), " was not made by a recorded op");
  auto active = std::make_shared<bool>(true);
  hooks_of(t).post.push_back([active, hook = std::move(hook)](const Grads& dx, const Grads& dy) {
    if (*active) hook(dx, dy);
  });
  return HookHandle(active);
}

HookHandle register_all_gradients_hook(const std::vector<Tensor>& tensors,
                                       std::function<void(const std::vector<Tensor>&)> hook) {
  struct Arrivals {
    std::vector<Tensor> grads;
    size_t missing = 0;
    bool waiting = false;
    uint64_t pass = 0;  // an earlier pass may have thrown
    std::function<void(const std::vector<Tensor>&)> hook;
    void finish() {
      waiting = false;
      hook(grads);
    }
  };
  auto active = std::make_shared<bool>(true);
  auto arrivals = std::make_shared<Arrivals>();
  arrivals->hook = std::move(hook);
  const size_t n = tensors.size();
  for (size_t i = 0; i < n; ++i) {
    register_hook(tensors[i], [active, arrivals, i, n](const Tensor& g) {
      if (!*active) return Tensor();
      const uint64_t pass = Tape::current().outermost;
      if (!arrivals->waiting || arrivals->pass != pass) {
        arrivals->waiting = true;
        arrivals->pass = pass;
        arrivals->grads.assign(n, Tensor());
        arrivals->missing = n;
        // Tensors that take no part in this backward never arrive; its end is the last moment.
        queue_final_callback([arrivals] {
          if (arrivals->waiting) arrivals->finish();
        });
      }
      arrivals->grads[i] = g;
      if (--arrivals->missing == 0) arrivals->finish();
      return Tensor();
    });
  }
  return HookHandle(active);
}

void queue_final_callback(std::function<void()> callback) {
  Tape& tape = Tape::current();
  if (tape.passes == 0) fail<UsageError>("queue_final_callback", "no backward is running");
  tape.final_callbacks.push_back(std::move(callback));
}

BackwardRegion::BackwardRegion(std::function<void()> before, std::function<void()> after)
    : BackwardRegion(
          make_ref<Region>(std::move(before), std::move(after), Tape::current().region)) {}
BackwardRegion::BackwardRegion(Ref<Region> region)
    : region_(std::move(region)), outer_(std::exchange(Tape::current().region, region_)) {}
BackwardRegion::~BackwardRegion() { Tape::current().region = std::move(outer_); }

SavedTensorHooks::SavedTensorHooks(PackHook pack, UnpackHook unpack) {
  Tape::current().saved_hooks.push_back({std::move(pack), std::move(unpack)});
}
SavedTensorHooks::~SavedTensorHooks() { Tape::current().saved_hooks.pop_back(); }

void FunctionContext::save(std::vector<Tensor> tensors) {
  const auto& hooks = Tape::current().saved_hooks;
  for (Tensor& t : tensors) {
    saved_.emplace_back(std::move(t), hooks.empty() ? nullptr : &hooks.back().pack,
                        hooks.empty() ? nullptr : &hooks.back().unpack);
  }
}

std::vector<Tensor> FunctionContext::saved() const {
  if (released_)
    fail<AutogradError>(
        name_, "backward ran a second time: its saved tensors were freed; pass retain_graph");
  std::vector<Tensor> tensors;
  for (const SavedTensor& s : saved_) tensors.push_back(s.unpack(name_));
  return tensors;
}

class FunctionNode final : public Node {
 public:
  explicit FunctionNode(const Function& function) : function_(function) {
    context_.name_ = function.name;
    always = function.always;
  }
  [[nodiscard]] std::string_view name() const override { return context_.name_; }
  [[nodiscard]] const TensorMeta* input_meta(size_t i) const override { return &metas_[i]; }
  Grads apply(const Grads& dy, const Needs& needs) override {
    context_.needs_ = needs;
    Grads dx = function_.backward(context_, dy);
    if (!dx.empty() && dx.size() < metas_.size()) {
      fail<AutogradError>(name(), "gave ", counted(dx.size(), "gradient"), " for ",
                          counted(metas_.size(), "input"),
                          "; give one per input, undefined if it is zero");
    }
    return dx;
  }
  void release() override {
    context_.released_ = true;
    context_.saved_.clear();
  }
  TensorList forward(Tensors inputs) {
    for (const Tensor& t : inputs) metas_.push_back(t.meta());
    const NoGrad guard;
    return function_.forward(context_, inputs);
  }

 private:
  Function function_;
  FunctionContext context_;
  std::vector<TensorMeta> metas_;
};

TensorList apply(const Function& function, const std::vector<Tensor>& inputs) {
  if (!function.forward || !function.backward) {
    fail<UsageError>(function.name, "is a Function without ",
                     function.forward ? "backward" : "forward");
  }
  auto* function_node = new FunctionNode(function);
  const Ref<Node> node(function_node);
  TensorList out = function_node->forward(inputs);
  for (size_t i = 0; i < out.size(); ++i)
    if (!out[i].defined()) fail<AutogradError>(function.name, "output ", i, " is undefined");
  bool any = false;
  for (const Tensor& t : inputs) any |= t.requires_grad();
  if (!any || !Context::current().grad_enabled) return out;
  Tape::current().add(*node);
  node->outputs = static_cast<int32_t>(out.size());
  // A function is not an op, so an interceptor could not name its module later.
  const Context& context = Context::current();
  if (context.options.anomaly || context.interceptor)
    node->module_path = joined_path(context.module_path);
  for (const Tensor& t : inputs) node->edges.push_back(edge_of(t));
  for (size_t i = 0; i < out.size(); ++i) {
    // An output that is an input (or its saved handle) must not become its own ancestor.
    if (out[i].handle()->use_count() > 1) out[i] = out[i].detach();
    if (is_floating(out[i].dtype())) attach(out[i], node, static_cast<int32_t>(i));
  }
  return out;
}

TensorList reaching(const std::vector<Tensor>& outputs, const std::vector<Tensor>& others) {
  std::vector<Tensor> all = outputs;
  all.insert(all.end(), others.begin(), others.end());
  return apply({"reaching",
                [n = outputs.size()](FunctionContext&, Tensors in) {
                  TensorList out;
                  for (const Tensor& t : in.first(n)) out.push_back(t.detach());
                  return out;
                },
                [all = all.size()](FunctionContext&, const Grads& dy) {
                  Grads dx = dy;
                  dx.resize(all);
                  return dx;
                }},
               all);
}

}  // namespace tessera
