// SPDX-License-Identifier: Apache-2.0
// Who may join a graph, accumulating into leaves, and saved tensors with their hooks.
#include "tessera/autograd/node.h"

#include "tessera/autograd/seen_by_one.h"
#include "tessera/core/context.h"
#include "tessera/core/process.h"
#include "tessera/core/rank.h"
#include "tessera/core/scopes.h"
#include "tessera/kernels/pointwise/pointwise.h"

namespace tessera {

AccumulateNode::AccumulateNode(Ref<TensorImpl> leaf) : leaf_(std::move(leaf)) {
  leaf_.impl().leaf_node = this;
}
AccumulateNode::~AccumulateNode() { leaf_.impl().leaf_node = nullptr; }

Grads AccumulateNode::apply(const Grads& dy, const Needs&) {
  if (!dy[0].defined()) return {};
  LeafGrad& leaf = *leaf_.impl().leaf;
  Tensor settled;
  if (dy[0].is_distributed() && leaf_.is_distributed() &&
      dy[0].impl().layout != leaf_.impl().layout)
    settled = detail::distributor_of("backward", leaf_).settle(dy[0], leaf_);
  const Tensor& g = settled.defined() ? settled : dy[0];
  if (leaf.grad.defined()) {
    leaf.grad = add(leaf.grad, g);
  } else {
    // A gradient that is visible elsewhere is copied: optimizers and clipping write gradients in
    // place.
    leaf.grad = seen_by_one(g) || g.impl().node ? g : copy(g);
  }
  for (size_t i = 0; i < leaf.post_accumulate.size(); ++i) leaf.post_accumulate[i](leaf_);
  return {};
}

bool seen_by_one(const Tensor& gradient) {
  const TensorImpl& impl = gradient.impl();
  const uint32_t owners = impl.local ? 2 : 1;  // a distributed tensor and its local part
  return impl.contiguous && gradient.handle()->use_count() == 1 &&
         impl.storage->use_count() == owners && (!impl.local || impl.local->use_count() == 1);
}

SavedTensor::SavedTensor(Tensor t, const PackHook* pack, const UnpackHook* unpack) {
  if (pack) {
    const NoGrad guard;  // an op of the hook must not be saved through the hook
    packed_ = std::make_shared<Packed>(Packed{(*pack)(t), *unpack, edge_of(t)});
    return;
  }
  version_ = t.storage().version();
  tensor_ = std::move(t);
}

Tensor SavedTensor::unpack(std::string_view op) const {
  if (packed_) {
    Tensor t = packed_->unpack(packed_->value);
    if (packed_->edge.node && Context::current().grad_enabled) {
      t = t.detach();
      attach(t, packed_->edge.node, packed_->edge.index);
    }
    return t;
  }
  if (__builtin_expect(tensor_.storage().version() != version_, false)) {
    fail<InPlaceError>(op, "a tensor saved for backward, ", tensor_.meta(),
                       ", was written in place since (version ", tensor_.storage().version(),
                       ", saved at ", version_, "); write it after backward, or save a copy");
  }
  return tensor_;
}

namespace {

// A graph has no locks: while its Context exists, Contexts of other threads may not join it.
void check_thread(const Tensor& t, uint32_t context) {
  if (Context::find(context) || !Process::get().context_exists(context)) return;
  fail<UsageError>("autograd", t.meta(),
                   t.is_leaf() ? ", a leaf that requires grad," : ", which autograd recorded,",
                   " is in use by a rank or Session of another thread: make the leaf inside each "
                   "rank, or from t.detach(); to read its values only, use NoGrad");
}

// The first Context that records a leaf keeps it for its lifetime.
void claim(const Tensor& t, uint32_t context) {
  std::atomic<uint32_t>& user = t.impl().leaf->context;
  for (uint32_t before = user; before != context;) {
    if (before != 0) check_thread(t, before);
    if (Context::find(before) || user.compare_exchange_weak(before, context)) return;
  }
}

}  // namespace

Edge edge_of(const Tensor& t) {
  if (!t.defined() || !t.requires_grad()) return {};
  TensorImpl& impl = t.impl();
  const uint32_t context = Context::current().number;
  if (impl.node) {
    auto* node = static_cast<Node*>(impl.node.get());
    if (node->context != context) check_thread(t, node->context);
    return {Ref<Node>(node), impl.node_output};
  }
  claim(t, context);
  if (impl.leaf_node) return {Ref<Node>(static_cast<Node*>(impl.leaf_node)), 0};
  return {Ref<Node>(new AccumulateNode(t.handle())), 0};
}

void attach(const Tensor& out, const Ref<Node>& node, int32_t index) {
  TensorImpl& impl = out.impl();
  impl.node = node;
  impl.node_output = index;
  impl.requires_grad = true;
}

}  // namespace tessera
