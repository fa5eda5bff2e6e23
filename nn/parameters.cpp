// SPDX-License-Identifier: Apache-2.0
// Walks the tree in the order of visit() and gives the existing tensors new bytes.
#include "tessera/nn/parameters.h"

#include "tessera/core/scopes.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/planner/planner.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/kept_gradients_impl.h"
#include "tessera/nn/lay_out.h"
#include "tessera/nn/parameters_impl.h"

#include <map>

namespace tessera::nn {
namespace {

using OnTensor = std::function<void(const std::string& path, Tensor&, const Init&)>;

// Parameters and buffers in the order of visit().
class TensorVisitor final : public Visitor {
 public:
  TensorVisitor(int kinds, OnTensor f) : kinds_(kinds), f_(std::move(f)) {}
  void on_parameter(const std::string& path, Tensor& t, const Init& init) override {
    if (kinds_ & detail::parameters) f_(path, t, init);
  }
  void on_buffer(const std::string& path, Tensor& t, const Init& init, bool persistent) override {
    if (kinds_ & (persistent ? detail::persistent_buffers : detail::other_buffers))
      f_(path, t, init);
  }

 private:
  int kinds_;
  OnTensor f_;
};

void for_each(Module& root, int kinds, OnTensor f) {
  TensorVisitor visitor(kinds, std::move(f));
  visitor.walk(root);
}

std::vector<NamedParameter> listed(Module& root, int kinds) {
  std::vector<NamedParameter> list;
  for_each(root, kinds, [&](const std::string& path, const Tensor& t, const Init&) {
    list.push_back({path, t});
  });
  return list;
}

// In layout `layout`, or plain if it is empty.
Tensor filled(const TensorMeta& meta, const Init& init, RngKey key, Layout layout) {
  const auto made = [layout](const auto& op) {
    return layout ? call_on(op, layout) : call(op, {});
  };
  if (init.std == 0) return made(op::Fill{meta.shape, meta.dtype, meta.device, init.mean});
  const double reach = init.cut * init.std;
  return made(op::Random{meta.shape,
                         meta.dtype,
                         meta.device,
                         init.distribution,
                         init.mean,
                         init.std,
                         init.mean - reach,
                         init.mean + reach,
                         key,
                         {},
                         {}});
}

// Buffers without bytes that checkpoints do not contain are filled as by initialize; they do not
// depend on a seed.
void fill_other_buffers(Module& root, Device device) {
  for_each(root, detail::other_buffers, [&](const std::string& path, Tensor& t, const Init& init) {
    if (t.device().is_meta())
      detail::become(t, filled({t.shape(), t.dtype(), device}, init, {0, stream_of(path)},
                               t.is_distributed() ? layout_of(t) : Layout()));
  });
}

// Replaces the bytes of parameters, gradients and buffers where `made` gives others than it got.
void convert(Module& root,
             const std::function<Tensor(const std::string& path, const Tensor&)>& made) {
  const NoGrad guard;
  for_each(root, detail::all, [&](const std::string& path, Tensor& t, const Init&) {
    const Tensor grad = t.grad(), was = t.detach(), now = made(path, was);
    if (now.handle() == was.handle()) return;
    detail::become(t, now);
    if (grad.defined()) t.set_grad(made(path, grad));
  });
}

}  // namespace

void detail::become(const Tensor& to, const Tensor& made) {
  TensorImpl& a = to.impl();
  const TensorImpl& b = made.impl();
  while (b.storage->version() <= a.storage->version()) b.storage->bump_version();
  if (a.leaf) a.leaf->grad = {};
  a.meta = b.meta;
  a.strides = b.strides;
  a.offset = b.offset;
  a.storage = b.storage;
  a.layout = b.layout;
  a.local = b.local;
  a.contiguous = b.contiguous;
}

std::vector<std::pair<Tensor, Tensor>> detail::matched(std::string_view who, Module& to, int kinds,
                                                       const std::vector<NamedParameter>& from,
                                                       bool same_dtype) {
  std::map<std::string_view, const Tensor*> left;
  for (const NamedParameter& s : from) left[s.name] = &s.tensor;
  std::string wrong;
  std::vector<std::pair<Tensor, Tensor>> pairs;
  for_each(to, kinds, [&](const std::string& path, Tensor& t, const Init&) {
    const auto found = left.find(path);
    if (found == left.end()) {
      wrong += concat("; ", path, " is missing");
      return;
    }
    const Tensor& source = *found->second;
    if (source.shape() == t.shape() && (!same_dtype || source.dtype() == t.dtype())) {
      pairs.emplace_back(t, source);
    } else {
      wrong += concat("; ", path, " is ", source.meta(), ", expected ", t.meta());
    }
    left.erase(found);
  });
  for (const auto& [name, tensor] : left) wrong += concat("; ", name, " is not in the model");
  if (!wrong.empty())
    fail<DataError>(who, "the parameters given do not fit the model: ", wrong.substr(2));
  return pairs;
}

Tensor detail::part_of(const Tensor& x, const Tensor& like) {
  Tensor lying = x.detach();
  if (x.impl().layout != like.impl().layout) {
    if (x.is_distributed()) lying = full_tensor(x);
    if (like.is_distributed()) lying = distribute(lying, layout_of(like));
  }
  return to_device(lying.is_distributed() ? local(lying) : lying, like.device());
}

std::vector<NamedParameter> named_parameters(Module& root) {
  return listed(root, detail::parameters);
}

std::vector<Tensor> parameters(Module& root) {
  std::vector<Tensor> list;
  for (NamedParameter& p : named_parameters(root)) list.push_back(std::move(p.tensor));
  return list;
}

std::vector<NamedParameter> named_buffers(Module& root, bool persistent_only) {
  return listed(root, detail::persistent_buffers | (persistent_only ? 0 : detail::other_buffers));
}

std::vector<NamedModule> named_modules(Module& root) {
  class Modules final : public Visitor {
   public:
    bool on_module(const std::string& path, Module& module) override {
      list.push_back({path, &module});
      return true;
    }
    std::vector<NamedModule> list;
  } visitor;
  visitor.list.push_back({"", &root});
  visitor.walk(root);
  return visitor.list;
}

int64_t parameter_count(Module& root) {
  int64_t count = 0;
  for (const NamedParameter& p : named_parameters(root)) count += p.tensor.numel();
  return count;
}

void set_requires_grad(Module& root, bool on) {
  for_each(root, detail::parameters,
           [on](const std::string&, Tensor& p, const Init&) { p.set_requires_grad(on); });
}

void Module::zero_grad() {
  for (Tensor& p : parameters(*this)) detail::clear_gradient(p);
}

Module& Module::to(DType dtype) {
  if (!is_floating(dtype))
    fail<DTypeError>("to", "parameters have gradients, so they cannot be ", dtype,
                     ": give a floating dtype");
  convert(*this, [dtype](const std::string&, const Tensor& t) {
    return is_floating(t.dtype()) && t.dtype() != dtype ? cast(t, dtype) : t;
  });
  return *this;
}

Module& Module::to(Device device) {
  convert(*this, [device](const std::string& path, const Tensor& t) {
    if (t.device().is_meta() && !device.is_meta())
      fail<DeviceError>("to", path, ", ", t.meta(),
                        ", has no values to move: call nn::initialize or nn::load");
    if (t.device() == device) return t;
    return t.is_distributed()
               ? make_distributed(to_device(local(t), device), t.shape(), layout_of(t))
               : to_device(t, device);
  });
  return *this;
}

void initialize(Module& root, uint64_t seed, Device device) {
  for_each(root, detail::all, [&](const std::string& path, Tensor& t, const Init& init) {
    detail::become(t, filled({t.shape(), t.dtype(), device}, init, {seed, stream_of(path)},
                             tessera::detail::living_layout_of(t)));
  });
}

void initialize(Module& root, uint64_t seed, const LayoutOf& layout_of, Device device) {
  for_each(root, detail::all, [&](const std::string& path, Tensor& t, const Init& init) {
    const TensorMeta meta{t.shape(), t.dtype(), device};
    detail::become(t, filled(meta, init, {seed, stream_of(path)}, layout_of(path, meta)));
  });
}

void lay_out(Module& root, const LayoutOf& layout_of) {
  for_each(root, detail::all, [&](const std::string& path, Tensor& t, const Init&) {
    if (!t.device().is_meta())
      fail<DeviceError>("lay_out", path, ", ", t.meta(),
                        ", has bytes: expected a model on the meta device");
    const Layout layout = layout_of(path, t.meta());
    if (!layout) return;
    const Tensor part = empty(layout.local_shape(t.shape()), t.dtype(), kMeta);
    detail::become(t, make_distributed(part, t.shape(), layout.id()));
  });
}

void allocate(Module& root, Device device) {
  for_each(root, detail::parameters | detail::persistent_buffers,
           [device](const std::string&, Tensor& t, const Init&) {
             if (!t.device().is_meta()) return;
             const Shape part = t.is_distributed() ? local(t).shape() : t.shape();
             const Tensor bytes = empty(part, t.dtype(), device);
             detail::become(
                 t, t.is_distributed() ? make_distributed(bytes, t.shape(), layout_of(t)) : bytes);
           });
  fill_other_buffers(root, device);
}

void load(Module& root, const std::vector<NamedParameter>& source, Device device) {
  const auto pairs =
      detail::matched("load", root, detail::parameters | detail::persistent_buffers, source, true);
  fill_other_buffers(root, device);
  for (const auto& [to, from] : pairs) {
    const Tensor whole = from.is_distributed() ? full_tensor(from) : from.detach();
    detail::become(to, to.is_distributed() ? distribute(whole, layout_of(to))
                                           : to_device(copy(whole), device));
  }
}

void copy_values(const Tensor& to, const Tensor& from) {
  if (to.handle() == from.handle()) return;
  const NoGrad guard;
  assign_(detail::part_of(to, to), detail::part_of(from, to));
}

void copy_parameters(Module& to, const std::vector<NamedParameter>& from) {
  const NoGrad guard;
  for (const auto& [t, source] : detail::matched("copy_parameters", to, detail::all, from)) {
    if (!t.device().is_meta()) copy_values(t, source);
    else detail::become(t, source.dtype() == t.dtype() ? copy(source) : cast(source, t.dtype()));
  }
}

void copy_parameters(Module& to, Module& from) { copy_parameters(to, listed(from, detail::all)); }

}  // namespace tessera::nn
