// SPDX-License-Identifier: Apache-2.0
// The backward pass: count the edges into every reachable node, then run ready nodes, latest first,
// and a leaf as soon as its last gradient is there, so that its hooks overlap the rest of backward.
// State belongs to the pass; a node stores its slot in it, restored at the end, so a pass may run
// inside another (hooks, recompute).
//
// A pass in two parts runs first the nodes between results and inputs, each for the gradients on
// that path alone, then everything else. What arrived at a node, or was given for the second part
// unasked (a norm gives all its gradients at once), stays with its state. Between the parts the
// pass is suspended: nodes, tape and grad mode are as if it did not exist.
#include "tessera/autograd/autograd.h"
#include "tessera/autograd/graph_root.h"
#include "tessera/core/message.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace tessera {

class BackwardPass {
 public:
  BackwardPass(bool retain, bool create_graph)
      : retain_(retain), create_graph_(create_graph), tape_(Tape::current()) {
    states_.reserve(64);
    resume();
  }
  BackwardPass(const BackwardPass&) = delete;
  BackwardPass& operator=(const BackwardPass&) = delete;
  ~BackwardPass() {
    if (mode_) suspend();
  }

  void add_root(const GraphRoot& result, const Tensor& gradient) {
    check_gradient(result, gradient);
    const Edge& e = result.edge_;
    State& s = state(slot(e.node));
    accumulate(s.buffer[static_cast<size_t>(e.index)], gradient);
    roots_.push_back(e.node->slot_);
  }
  void capture(const Tensor& input, Tensor* into) {
    const Edge e = edge_of(input);
    if (!e.node) fail<AutogradError>("grad", "input ", input.meta(), " does not require grad");
    captures_.push_back({e.node, e.index, into});
  }

  void run() {
    discover();
    if (!captures_.empty()) prune();
    count_regions();
    for (size_t r : roots_) push_if_ready(r);
    visit_all();
    run_final_callbacks();
  }

  /// Runs what leads to `inputs`, and suspends the pass.
  void run_to(Tensors inputs) {
    require_outermost();
    part_ = Part::inputs;
    discover();
    mark_paths_to(inputs);
    count_regions();
    for (size_t r : roots_)
      if (states_[r].on_path) push_if_ready(r);
    visit_all();
    suspend();
  }
  /// Runs the rest.
  void run_rest() {
    resume();
    require_outermost();
    part_ = Part::rest;
    for (size_t i = 0; i < states_.size(); ++i)
      if (states_[i].waits) push(i);
    for (size_t r : roots_)
      if (!states_[r].on_path) push_if_ready(r);
    visit_all();
    run_final_callbacks();
  }

 private:
  enum class Part : uint8_t { whole, inputs, rest };
  struct State {
    Ref<Node> node;
    Grads buffer;
    int32_t dependencies = 0;
    bool needed = true, queued = false;
    // Of a pass in two parts.
    bool on_path = false;  // leads to an input
    bool waits = false;    // has run for its inputs, and has more to give
    bool asked = false;    // everything that it has to give is in `given`
    Grads given = {};      // for the second part
    const void* outer_pass = nullptr;
    size_t outer_slot = 0;
  };
  struct RegionState {
    Ref<Region> region;
    size_t left = 0;  // nodes and regions in it that have not run to their end
    bool begun = false;
    const void* outer_pass = nullptr;
    size_t outer_slot = 0;
  };
  struct Capture {
    Ref<Node> node;
    int32_t index;
    Tensor* into;
  };

  void require_outermost() const {
    if (tape_.passes > 1)
      fail<UsageError>("backward", "runs inside another pass, where it cannot be in two parts");
  }
  void resume() {
    for (size_t i = 0; i < states_.size(); ++i) claim(*states_[i].node, states_[i], i);
    for (size_t i = 0; i < regions_.size(); ++i) claim(*regions_[i].region, regions_[i], i);
    if (tape_.passes++ == 0) {
      if (number_ == 0) number_ = ++tape_.started;
      tape_.outermost = number_;
      std::swap(tape_.final_callbacks, callbacks_);
    }
    mode_.emplace(create_graph_);
    accumulated_ = tape_.accumulates;
  }
  void suspend() {
    for (State& s : states_) {
      s.node->pass_ = s.outer_pass;
      s.node->slot_ = s.outer_slot;
    }
    for (RegionState& r : regions_) {
      r.region->pass_ = r.outer_pass;
      r.region->slot_ = r.outer_slot;
    }
    tape_.accumulates = accumulated_;
    mode_.reset();
    if (--tape_.passes == 0) callbacks_ = std::exchange(tape_.final_callbacks, {});
  }
  template <class Of, class S> void claim(Of& of, S& state, size_t slot) {
    state.outer_pass = std::exchange(of.pass_, this);
    state.outer_slot = std::exchange(of.slot_, slot);
  }

  static void check_gradient(const GraphRoot& result, const Tensor& given) {
    const TensorMeta& of = result.meta_;
    if (!(given.shape() == of.shape) || given.dtype() != of.dtype) {
      fail<AutogradError>("backward", "the gradient given is ", given.meta(), " but the output is ",
                          of);
    }
    if (given.is_distributed() != result.distributed_ && given.rank() > 0) {
      fail<LayoutError>("backward", "the gradient given is ",
                        given.is_distributed() ? "distributed" : "plain", ", but the output is ",
                        result.distributed_ ? "distributed: distribute() the gradient"
                                            : "plain: take full_tensor() of the gradient");
    }
  }

  State& state(size_t i) { return states_[i]; }

  size_t slot(const Ref<Node>& node) {
    if (node->pass_ == this) return node->slot_;
    State& s = states_.emplace_back();
    s.node = node;
    s.buffer.resize(static_cast<size_t>(node->outputs));
    claim(*node, s, states_.size() - 1);
    return node->slot_;
  }

  size_t region_slot(const Ref<Region>& region) {
    if (region->pass_ == this) return region->slot_;
    const size_t at = regions_.size();
    regions_.push_back({region});
    claim(*region, regions_.back(), at);
    if (region->outer) ++regions_[region_slot(region->outer)].left;
    return at;
  }

  void begin_region(const Ref<Region>& region) {
    RegionState& r = regions_[region->slot_];
    if (std::exchange(r.begun, true)) return;
    if (region->outer) begin_region(region->outer);
    if (region->before) region->before();
  }

  void leave_region(const Ref<Region>& region) {
    if (--regions_[region->slot_].left > 0) return;
    ended_.push_back(region->slot_);
    if (region->outer) leave_region(region->outer);
  }

  void end_regions() {
    for (size_t r : std::exchange(ended_, {})) {
      if (const Region& region = *regions_[r].region; regions_[r].begun && region.after)
        region.after();
    }
  }

  void discover() {
    // States grow as nodes are found, so the list of states is the work list.
    for (size_t i = 0; i < states_.size(); ++i) {
      Node* node = states_[i].node.get();
      for (const Edge& e : node->edges) {
        if (e.node) ++states_[slot(e.node)].dependencies;
      }
    }
  }

  // Counts what runs in each region.
  void count_regions() {
    for (const State& s : states_) {
      if (s.needed && s.node->region) ++regions_[region_slot(s.node->region)].left;
    }
  }
  void visit_all() {
    tape_.accumulates = captures_.empty();
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end());
      const size_t at = heap_.back().second;
      heap_.pop_back();
      // A region ends after its leaves, which run at once.
      if (!ended_.empty() && states_[at].node->sequence != 0) end_regions();
      visit(at);
    }
    end_regions();
  }
  void run_final_callbacks() {
    if (tape_.passes > 1) return;
    for (auto& f : std::exchange(tape_.final_callbacks, {})) f();
  }

  // Inputs of a node are older than it.
  [[nodiscard]] std::vector<size_t> oldest_first() const {
    std::vector<size_t> order(states_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::sort(order, {}, [&](size_t i) { return states_[i].node->sequence; });
    return order;
  }

  void mark_paths_to(Tensors inputs) {
    for (const Tensor& input : inputs) {
      if (!input.requires_grad()) continue;
      const Edge e = edge_of(input);
      if (e.node->pass_ == this) states_[e.node->slot_].on_path = true;
    }
    for (size_t i : oldest_first()) {
      for (const Edge& e : states_[i].node->edges)
        if (e.node && states_[e.node->slot_].on_path) states_[i].on_path = true;
    }
  }

  // With captures, only nodes between outputs and inputs run.
  void prune() {
    for (State& s : states_) s.needed = false;
    for (size_t i : oldest_first()) {
      for (const Edge& e : states_[i].node->edges) {
        if (e.node && (states_[e.node->slot_].needed || captured(e))) states_[i].needed = true;
      }
    }
  }
  [[nodiscard]] bool captured(const Edge& e) const {
    return std::ranges::any_of(
        captures_, [&](const Capture& c) { return c.node == e.node && c.index == e.index; });
  }

  void push_if_ready(size_t i) {
    if (states_[i].dependencies == 0 && !states_[i].queued) push(i);
  }
  void push(size_t i) {
    states_[i].queued = true;
    const uint64_t sequence = states_[i].node->sequence;
    heap_.emplace_back(sequence == 0 ? UINT64_MAX : sequence, i);
    std::push_heap(heap_.begin(), heap_.end());
  }

  // By value and moved, so that a gradient with one user has a single handle.
  static void accumulate(Tensor& into, Tensor g) {
    into = into.defined() ? add(into, g) : std::move(g);
  }

  // Ops of a node whose module is known (anomaly mode, profiles) run under its path.
  class InModuleOf {
   public:
    explicit InModuleOf(const Node& node) : known_(!node.module_path.empty()) {
      if (known_) before_ = std::exchange(Context::current().module_path, {node.module_path});
    }
    ~InModuleOf() {
      if (known_) Context::current().module_path = std::move(before_);
    }
    InModuleOf(const InModuleOf&) = delete;
    InModuleOf& operator=(const InModuleOf&) = delete;

   private:
    bool known_;
    std::vector<std::string> before_;
  };

  // Whether the gradient of an edge goes on in this part of the pass.
  [[nodiscard]] bool is_of_part(const Edge& e) const {
    if (!e.node) return false;
    return part_ == Part::whole || states_[e.node->slot_].on_path == (part_ == Part::inputs);
  }
  // A node that communicates or is watched runs once: also what the second part needs.
  [[nodiscard]] static bool runs_once(const Node& node) {
    return node.always || (node.hooks && !node.hooks->post.empty());
  }
  [[nodiscard]] Needs needs_of(const Node& node, const Grads& given) const {
    Needs needs(node.edges.size());
    for (size_t i = 0; i < node.edges.size(); ++i) {
      const Edge& e = node.edges[i];
      if (!e.node || (i < given.size() && given[i].defined())) continue;
      const bool captures = captures_.empty() || states_[e.node->slot_].needed || captured(e);
      needs.set(i, captures && (is_of_part(e) || (part_ == Part::inputs && runs_once(node))));
    }
    return needs;
  }

  void visit(size_t at) {
    const Ref<Node> node = states_[at].node;
    const bool again = part_ == Part::rest && states_[at].on_path;
    Grads dy = std::move(states_[at].buffer), dx = std::move(states_[at].given);
    if (!again) run_gradient_hooks(*node, dy);
    for (const Capture& c : captures_) {
      if (c.node == node) *c.into = dy[static_cast<size_t>(c.index)];
    }
    const bool any = std::ranges::any_of(dy, [](const Tensor& t) { return t.defined(); });
    const bool runs = (any || node->always) && states_[at].needed && !states_[at].asked;
    if (runs) compute(*node, dy, dx);
    if (part_ == Part::inputs && keeps(at, runs, dy, dx)) return pass_on(*node, dx);
    if (runs && !retain_) node->release();
    dy.clear();
    pass_on(*node, dx);
    if (node->region && states_[at].needed) leave_region(node->region);
  }

  // Adds to `dx` what this part of the pass asks of a node.
  void compute(Node& node, const Grads& dy, Grads& dx) {
    if (node.region) begin_region(node.region);
    Grads made;
    {
      const InModuleOf here(node);
      made = node.apply(dy, needs_of(node, dx));
    }
    check(node, made);
    if (node.hooks) {
      for (size_t i = 0; i < node.hooks->post.size(); ++i) node.hooks->post[i](made, dy);
    }
    if (dx.empty()) return void(dx = std::move(made));
    if (dx.size() < made.size()) dx.resize(made.size());
    for (size_t i = 0; i < made.size(); ++i)
      if (made[i].defined() && !dx[i].defined()) dx[i] = std::move(made[i]);
  }

  // Keeps what the second part needs of a node. False: it needs nothing.
  bool keeps(size_t at, bool ran, Grads& dy, Grads& dx) {
    State& s = states_[at];
    const Node& node = *s.node;
    bool all_given = true;
    for (size_t i = 0; i < node.edges.size(); ++i) {
      if (!node.edges[i].node || is_of_part(node.edges[i])) continue;
      s.waits = true;
      if (i >= dx.size() || !dx[i].defined()) {
        all_given = false;
        continue;
      }
      s.given.resize(node.edges.size());
      s.given[i] = std::move(dx[i]);
    }
    if (!s.waits) return false;
    s.asked = all_given || !ran || runs_once(node);
    if (!s.asked) s.buffer = std::move(dy);
    else if (ran && !retain_) s.node->release();
    return true;
  }

  void pass_on(const Node& node, Grads& dx) {
    for (size_t i = 0; i < node.edges.size(); ++i) {
      const Edge& e = node.edges[i];
      if (!is_of_part(e)) continue;
      State& target = states_[e.node->slot_];
      if (i < dx.size() && dx[i].defined())
        accumulate(target.buffer[static_cast<size_t>(e.index)], std::move(dx[i]));
      if (--target.dependencies == 0) push(e.node->slot_);
    }
  }

  // A replacement is as the gradient is; only a plain 0-dim constant may stand for a distributed
  // one. whose(): the tensor with the hook, in words.
  template <class Whose>
  static void check_replacement(const Tensor& replaced, const Tensor& g, const Whose& whose) {
    if (replaced.is_distributed() != g.is_distributed() && replaced.rank() != 0) {
      fail<LayoutError>("hook", "gave a ", replaced.is_distributed() ? "distributed" : "plain",
                        " gradient ", replaced.meta(), " for a ",
                        g.is_distributed() ? "distributed" : "plain", " one of ", whose());
    }
    const auto differs = [&](const char* what) {
      return concat("gave a gradient of another ", what, " for ", whose(), ": given ",
                    replaced.meta(), ", expected ", g.meta());
    };
    if (replaced.shape() != g.shape()) fail<ShapeError>("hook", differs("shape"));
    if (replaced.dtype() != g.dtype()) fail<DTypeError>("hook", differs("dtype"), "; cast it");
    if (replaced.device() != g.device()) fail<DeviceError>("hook", differs("device"));
  }

  static void run_gradient_hooks(Node& node, Grads& dy) {
    if (auto* leaf = dynamic_cast<AccumulateNode*>(node.sequence == 0 ? &node : nullptr)) {
      if (!dy[0].defined()) return;
      auto& hooks = leaf->leaf().impl().leaf->hooks;
      for (size_t i = 0; i < hooks.size(); ++i) {
        Tensor replaced = hooks[i](dy[0]);
        if (!replaced.defined()) continue;
        check_replacement(replaced, dy[0],
                          [&] { return concat("the leaf ", leaf->leaf().meta()); });
        dy[0] = std::move(replaced);
      }
      return;
    }
    if (!node.hooks) return;
    for (size_t i = 0; i < node.hooks->gradient.size(); ++i) {
      const auto& [output, hook] = node.hooks->gradient[i];
      Tensor& g = dy[static_cast<size_t>(output)];
      if (!g.defined()) continue;
      Tensor replaced = hook(g);
      if (!replaced.defined()) continue;
      check_replacement(replaced, g, [&, output = output] {
        return concat("output ", output, " of ", node.name(), in_module(node.module_path));
      });
      g = std::move(replaced);
    }
  }

  void check(const Node& node, const Grads& dx) const {
    const bool anomaly = Context::current().options.anomaly;
    if (dx.size() > node.edges.size()) {
      fail<AutogradError>(node.name(), "gave ", counted(dx.size(), "gradient"), " for ",
                          counted(node.edges.size(), "input"));
    }
    for (size_t i = 0; i < dx.size(); ++i) {
      if (!dx[i].defined()) continue;
      const TensorMeta* expected = node.input_meta(i);
      if (expected && !(dx[i].shape() == expected->shape && dx[i].dtype() == expected->dtype)) {
        fail<AutogradError>(node.name(), "gave a gradient ", dx[i].meta(), " for input ", i,
                            ", which is ", *expected);
      }
      if (anomaly && !dx[i].device().is_meta()) check_nan(node, dx[i], i);
    }
  }
  static void check_nan(const Node& node, const Tensor& g, size_t i) {
    const Tensor part = g.is_distributed() ? Tensor(g.impl().local) : g;
    for (double v : part.values()) {
      if (!std::isnan(v)) continue;
      fail<NumericError>(node.name(), "made NaN in the gradient of input ", i, ", ", g.meta(),
                         in_module(node.module_path));
    }
  }

  bool retain_, create_graph_;
  Tape& tape_;
  bool accumulated_ = false;      // what the pass around this one does
  std::optional<GradMode> mode_;  // none: it is suspended
  uint64_t number_ = 0;           // of outermost passes; 0: it is none
  Part part_ = Part::whole;
  std::vector<State> states_;
  std::vector<size_t> roots_;
  std::vector<std::pair<uint64_t, size_t>> heap_;
  std::vector<Capture> captures_;
  std::vector<RegionState> regions_;
  std::vector<std::function<void()>> callbacks_;  // while it is suspended
  std::vector<size_t> ended_;  // regions whose `after` is due, in the order in which they ended
};

GraphRoot::GraphRoot(const Tensor& result)
    : edge_(edge_of(result)), meta_(result.meta()), distributed_(result.is_distributed()) {
  if (!edge_.node)
    fail<AutogradError>("backward", result.meta(),
                        " does not depend on anything that requires grad");
}

namespace {
Tensor seed(const Tensor& output, const Tensor& given) {
  if (given.defined()) return given;
  if (output.numel() != 1) {
    fail<AutogradError>("backward", "the output is ", output.meta(),
                        ", not one element: pass its gradient, or sum it first");
  }
  const NoGrad guard;
  return full_like(output, 1);
}

std::unique_ptr<BackwardPass> pass_from(std::span<const GraphRoot> results, Tensors gradients) {
  if (results.size() != gradients.size()) {
    fail<AutogradError>("backward", counted(results.size(), "result"), " but ",
                        counted(gradients.size(), "gradient"));
  }
  auto pass = std::make_unique<BackwardPass>(false, false);
  for (size_t i = 0; i < results.size(); ++i) pass->add_root(results[i], gradients[i]);
  return pass;
}
}  // namespace

void backward(std::span<const GraphRoot> results, Tensors gradients) {
  pass_from(results, gradients)->run();
}

SplitBackward::SplitBackward(std::span<const GraphRoot> results, Tensors gradients, Tensors inputs)
    : pass_(pass_from(results, gradients)) {
  pass_->run_to(inputs);
}
SplitBackward::~SplitBackward() = default;

void SplitBackward::finish() {
  if (!pass_) fail<UsageError>("backward", "both parts have run");
  const std::unique_ptr<BackwardPass> pass = std::move(pass_);
  pass->run_rest();
}

void backward(const Tensor& output, const BackwardOptions& options) {
  BackwardPass pass(options.retain_graph || options.create_graph, options.create_graph);
  pass.add_root(GraphRoot(output), seed(output, options.gradient));
  pass.run();
}

std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const GradOptions& o) {
  std::vector<Tensor> result(inputs.size());
  BackwardPass pass(o.retain_graph || o.create_graph, o.create_graph);
  if (!o.grad_outputs.empty() && o.grad_outputs.size() != outputs.size()) {
    fail<AutogradError>("grad", counted(outputs.size(), "output"), " but ", o.grad_outputs.size(),
                        " grad_outputs");
  }
  for (size_t i = 0; i < inputs.size(); ++i) pass.capture(inputs[i], &result[i]);
  for (size_t i = 0; i < outputs.size(); ++i) {
    pass.add_root(GraphRoot(outputs[i]),
                  seed(outputs[i], o.grad_outputs.empty() ? Tensor() : o.grad_outputs[i]));
  }
  pass.run();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!result[i].defined() && !o.allow_unused) {
      fail<AutogradError>("grad", "no output depends on input ", i, ", ", inputs[i].meta(),
                          "; pass allow_unused to get an undefined tensor");
    }
  }
  return result;
}

}  // namespace tessera
