// SPDX-License-Identifier: Apache-2.0
// Layouts of whole parameters and of their gradients follow from those of the parameters: the axes
// of the bucket become Replicate and Partial, all others stay. A gradient in another layout is
// brought to it first, so that one that is equal on all ranks counts once.
#include "tessera/autograd/checkpoint.h"
#include "tessera/autograd/seen_by_one.h"
#include "tessera/dist/buckets/gradient_list.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/kept_gradients_impl.h"
#include "tessera/nn/parallel/whole_parameters_impl.h"

namespace tessera::nn::detail {
namespace {

Tensor part(const Tensor& t) { return t.is_distributed() ? Tensor(t.impl().local) : t; }

// On `compute`, as `stored` except on the axes of the bucket: Replicate, or Partial for gradients.
// An axis of the bucket may stand for several of `compute`.
Layout layout_on(Mesh compute, Layout stored, const Bucket::Axes& axes, bool gradient) {
  Layout layout = carried_to(compute, stored);
  for (const auto* list : {&axes.shard, &axes.replicate}) {
    for (const std::string& axis : *list) {
      for (const int a : compute.axes_named(axis))
        layout = layout.with(compute.axis(a).name, gradient ? Partial() : Replicate());
    }
  }
  return layout;
}

}  // namespace

Layout carried_to(Mesh mesh, Layout layout) {
  std::vector<Placement> placements;
  for (int a = 0; a < mesh.axes(); ++a) {
    const std::string& name = mesh.axis(a).name;
    placements.push_back(layout.mesh().has(name) ? layout.placement(name) : Replicate());
  }
  std::vector<std::vector<std::string>> orders;
  for (int d = 0; d <= layout.last_sharded_dim(); ++d) {
    std::vector<std::string> order;
    for (const int a : layout.axes_of(d)) {
      const std::string& name = layout.mesh().axis(a).name;
      if (mesh.has(name)) order.push_back(name);
    }
    if (order.size() > 1) orders.push_back(std::move(order));
  }
  return Layout::ordered(mesh, placements, orders);
}

CastParameters::CastParameters(std::vector<Tensor> parameters, DType dtype) {
  int64_t total = 0;
  for (const Tensor& p : parameters) total += part(p).numel();
  const Tensor buffer = empty({total}, dtype, parameters[0].device());
  int64_t offset = 0;
  for (Tensor& p : parameters) {
    const Shape shape = part(p).shape();
    const Tensor piece = alias(buffer, shape, contiguous_strides(shape), offset);
    offset += shape.numel();
    slots_.push_back(
        {p, p.is_distributed() ? make_distributed(piece, p.shape(), p.impl().layout) : piece});
  }
}

void CastParameters::gather() {
  const NoGrad guard;
  const OutsideCheckpoint outside;
  for (Slot& s : slots_) {
    const Ref<Storage>& storage = s.parameter.impl().storage;
    if (s.seen == storage && s.version == storage->version()) continue;
    assign_(s.copy, s.parameter);
    s.seen = storage;
    s.version = storage->version();
  }
}

TensorList CastParameters::whole() {
  TensorList all;
  for (const Slot& s : slots_) all.push_back(s.copy.detach());
  return all;
}

Grads CastParameters::reduce(const Grads& gradients, bool) {
  Grads all;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Tensor& g = gradients[i];
    all.push_back(g.defined() ? cast(g, slots_[i].parameter.dtype()) : g);
  }
  return all;
}

int64_t CastParameters::bytes() const {
  int64_t bytes = 0;
  for (const Slot& s : slots_) bytes += part(s.copy).numel() * item_size(s.copy.dtype());
  return bytes;
}

BucketParameters::BucketParameters(std::vector<Tensor> parameters, Mesh compute,
                                   const Bucket::Axes& axes, Bucket::Policy policy,
                                   Accumulation accumulation)
    : parameters_(std::move(parameters)),
      bucket_(std::make_shared<Bucket>(parameters_, axes, policy)),
      accumulation_(accumulation) {
  auto& kept = Context::current().state<KeptGradients>().of;
  for (const Tensor& p : parameters_) {
    kept[p.handle().get()] = {bucket_, static_cast<int>(whole_.size())};
    whole_.push_back(layout_on(compute, layout_of(p), axes, false));
    gradient_.push_back(layout_on(compute, layout_of(p), axes, true));
  }
}

void BucketParameters::gather() {
  const OutsideCheckpoint outside;
  std::vector<Tensor> shards;
  for (const Tensor& p : parameters_) shards.push_back(part(p));
  bucket_->gather(shards);
}

void BucketParameters::finish() {
  if (bucket_->gathers() && bucket_->gathered()) (void)bucket_->whole();
}

TensorList BucketParameters::whole() {
  const OutsideCheckpoint outside;
  const std::vector<Tensor> parts = bucket_->whole();
  TensorList all;
  for (size_t i = 0; i < parts.size(); ++i)
    all.push_back(make_distributed(parts[i], parameters_[i].shape(), whole_[i]));
  return all;
}

// Copies in another dtype on one rank are kept until the parameters change.
void BucketParameters::release() {
  if (bucket_->gathers()) bucket_->release();
}

void BucketParameters::release_after_forward() {
  const OutsideCheckpoint outside;
  if (bucket_->gathers()) bucket_->release_all_but_part();
}

// What the leaves hold, for the bucket to add to. Only a pass that adds to leaves may, hooks of a
// leaf are to see each gradient, and a gradient that somebody else has too stays as it is.
std::vector<Tensor> BucketParameters::accumulated() const {
  std::vector<Tensor> held;
  if (!Tape::current().accumulates) return held;
  for (const Tensor& p : parameters_) {
    const LeafGrad* leaf = p.impl().leaf.get();
    if (!leaf || !leaf->hooks.empty() || !leaf->post_accumulate.empty()) return {};
    const bool fits = leaf->grad.defined() && leaf->grad.impl().layout == p.impl().layout &&
                      seen_by_one(leaf->grad);
    held.push_back(fits ? part(leaf->grad) : Tensor());
  }
  return held;
}

Grads BucketParameters::reduce(const Grads& gradients, bool last) {
  if (Context::current().grad_enabled) {
    fail<AutogradError>("unshard",
                        "gradients of gradients of parameters need plain parameters: leave "
                        "create_graph away, or do not wrap the model");
  }
  const std::vector<Tensor> parts = bring_gradients(gradients, gradient_, bucket_->sum_dtype());
  const Reduce how = last || accumulation_ == Accumulation::shards ? Reduce::all
                     : accumulation_ == Accumulation::whole        ? Reduce::none
                                                                   : Reduce::scatter;
  bucket_->wait();  // the reduction before this one has a part in what the leaves hold
  const std::vector<Tensor> shards = bucket_->reduce(parts, how, accumulated());
  Grads all;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& p = parameters_[i];
    const bool given = i < shards.size() && shards[i].defined();
    all.push_back(given ? make_distributed(shards[i], p.shape(), p.impl().layout) : Tensor());
  }
  return all;
}

}  // namespace tessera::nn::detail
