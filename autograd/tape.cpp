// SPDX-License-Identifier: Apache-2.0
// The node of a recorded op: a copy of the op and the tensors that its `saves` declares, in one
// block if the op is small.
#include "tessera/autograd/tape.h"

#include "tessera/core/context.h"
#include "tessera/core/error.h"
#include "tessera/core/message.h"

namespace tessera {
namespace {

// The node of a recorded op. A small op's value is after the node in the same block.
class OpNode final : public Node {
 public:
  OpNode(const OpRow& row, const void* op) : row_(row) {
    void* at = small_;
    if (row.op_size > sizeof(small_)) {
      heap_.reset(new std::byte[row.op_size]);
      at = heap_.get();
    }
    row.copy(op, at);
    op_ = at;
  }
  ~OpNode() override { row_.destroy(op_); }

  [[nodiscard]] std::string_view name() const override { return row_.name; }
  [[nodiscard]] const TensorMeta* input_meta(size_t i) const override {
    return has_input_[i] ? &input_metas_[i] : nullptr;
  }

  void save(Tensors in, Outputs out, const Tape::SavedHooks* saved_hooks) {
    const PackHook* pack = saved_hooks ? &saved_hooks->pack : nullptr;
    const UnpackHook* unpack = saved_hooks ? &saved_hooks->unpack : nullptr;
    for (size_t i = 0; i < in.size(); ++i) {
      has_input_.push_back(in[i].defined());
      input_metas_.push_back(in[i].defined() ? in[i].meta() : TensorMeta{});
      if (row_.saves.saves_input(i))
        saved_.emplace_back(in[i].defined() ? SavedTensor(in[i], pack, unpack) : SavedTensor());
    }
    for (size_t i = 0; i < out.size(); ++i) {
      output_metas_.push_back(out[i].meta());
      // A detached alias: the output itself would keep this node alive by a cycle.
      if (row_.saves.saves_output(i)) saved_.emplace_back(out[i].detach(), pack, unpack);
    }
  }

  Grads apply(const Grads& dy, const Needs& needs) override {
    if (released_) {
      fail<AutogradError>(row_.name,
                          "backward ran a second time over a graph whose saved tensors were freed: "
                          "pass retain_graph");
    }
    if (!row_.vjp)
      fail<AutogradError>(row_.name, "is not differentiable: ", row_.not_differentiable);
    SmallVector<Tensor, 4> in(input_metas_.size());
    SmallVector<Tensor, 2> out(output_metas_.size());
    size_t next = 0;
    for (size_t i = 0; i < in.size(); ++i) {
      if (!row_.saves.saves_input(i)) continue;
      const SavedTensor& s = saved_[next++];
      if (s.defined()) in[i] = s.unpack(row_.name);
    }
    const bool graph = Context::current().grad_enabled;
    for (size_t i = 0; i < out.size(); ++i) {
      if (!row_.saves.saves_output(i)) continue;
      out[i] = saved_[next++].unpack(row_.name);
      if (graph && is_floating(out[i].dtype())) {
        out[i] = out[i].detach();
        attach(out[i], Ref<Node>(this), static_cast<int32_t>(i));
      }
    }
    SmallVector<const TensorMeta*, 4> in_metas;
    SmallVector<const TensorMeta*, 2> out_metas;
    for (size_t i = 0; i < in.size(); ++i) in_metas.push_back(input_meta(i));
    for (const TensorMeta& m : output_metas_) out_metas.push_back(&m);
    const Saved saved(in, out, Metas(in_metas.data(), in_metas.size()),
                      Metas(out_metas.data(), out_metas.size()));
    return row_.vjp(op_, saved, dy, needs);
  }

  void release() override {
    released_ = true;
    saved_.clear();
  }

 private:
  const OpRow& row_;
  void* op_;
  bool released_ = false;
  SmallVector<bool, 8> has_input_;
  SmallVector<TensorMeta, 2> input_metas_;
  SmallVector<TensorMeta, 1> output_metas_;
  SmallVector<SavedTensor, 2> saved_;
  std::unique_ptr<std::byte[]> heap_;
  alignas(16) std::byte small_[32];
};

}  // namespace

Tape& Tape::current() {
  auto* tape = dynamic_cast<Tape*>(Context::current().recorder);
  if (!tape)
    fail<UsageError>("autograd",
                     "this Context has no tape: make a tessera::Session instead of a bare Context");
  return *tape;
}

void Tape::record(const OpRow& row, const void* op, Tensors in, Outputs out) {
  bool floating = false;
  for (const Tensor& t : out) floating |= is_floating(t.dtype());
  if (!floating) return;
  auto* op_node = new OpNode(row, op);
  const Ref<Node> node(op_node);
  add(*node);
  node->outputs = static_cast<int32_t>(out.size());
  for (const Tensor& t : in) node->edges.push_back(edge_of(t));
  op_node->save(in, out, saved_hooks.empty() ? nullptr : &saved_hooks.back());
  for (size_t i = 0; i < out.size(); ++i) {
    if (is_floating(out[i].dtype())) attach(out[i], node, static_cast<int32_t>(i));
  }
  const Context& context = Context::current();
  if (context.options.anomaly || context.op_hook)
    node->module_path = joined_path(context.module_path);
}

void Tape::add(Node& node) {
  node.sequence = ++sequence_;
  node.context = Context::current().number;
  node.region = region;
}

void Tape::check_write(const OpRow& row, const Tensor& x) {
  if (!Context::current().grad_enabled || !x.requires_grad()) return;
  fail<InPlaceError>(
      row.name, "would write ", x.meta(),
      x.is_leaf()
          ? ", a variable that requires grad; write it under NoGrad"
          : ", which autograd recorded; in-place ops are for optimizers and buffers, under NoGrad");
}

}  // namespace tessera
