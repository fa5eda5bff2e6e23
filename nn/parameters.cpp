// SPDX-License-Identifier: Apache-2.0
// Walks the tree in the order of visit(), and puts new bytes into the tensors that are there.
#include "tessera/nn/parameters.h"

#include "tessera/dist/dtensor.h"
#include "tessera/dist/planner/planner.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <map>

namespace tessera::nn {
namespace {

using OnTensor = std::function<void(const std::string& path, Tensor&, const Init&)>;

// Parameters and buffers in the order of visit().
class TensorVisitor final : public Visitor {
 public:
  enum Which : uint8_t { parameters = 1, persistent_buffers = 2, other_buffers = 4, all = 7 };
  TensorVisitor(int which, OnTensor f) : which_(which), f_(std::move(f)) {}
  void on_parameter(const std::string& path, Tensor& t, const Init& init) override {
    if (which_ & parameters) f_(path, t, init);
  }
  void on_buffer(const std::string& path, Tensor& t, const Init& init, bool persistent) override {
    if (which_ & (persistent ? persistent_buffers : other_buffers)) f_(path, t, init);
  }

 private:
  int which_;
  OnTensor f_;
};

void for_each(Module& root, int which, OnTensor f) {
  TensorVisitor visitor(which, std::move(f));
  visitor.walk(root);
}

std::vector<NamedParameter> listed(Module& root, int which) {
  std::vector<NamedParameter> list;
  for_each(root, which, [&](const std::string& path, const Tensor& t, const Init&) {
    list.push_back({path, t});
  });
  return list;
}

// Lying as `layout`, or plain where that is empty.
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

// Gives `to` the bytes and layout of `made`: the same tensor for all who hold it, written anew, so
// a graph that saved it before does not take it for what it was.
void become(const Tensor& to, const Tensor& made) {
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

}  // namespace

std::vector<NamedParameter> named_parameters(Module& root) {
  return listed(root, TensorVisitor::parameters);
}

std::vector<Tensor> parameters(Module& root) {
  std::vector<Tensor> list;
  for (NamedParameter& p : named_parameters(root)) list.push_back(std::move(p.tensor));
  return list;
}

std::vector<NamedParameter> named_buffers(Module& root, bool persistent_only) {
  return listed(root, TensorVisitor::persistent_buffers |
                          (persistent_only ? 0 : TensorVisitor::other_buffers));
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
  for_each(root, TensorVisitor::parameters,
           [on](const std::string&, Tensor& p, const Init&) { p.set_requires_grad(on); });
}

void initialize(Module& root, uint64_t seed, Device device) {
  for_each(root, TensorVisitor::all, [&](const std::string& path, Tensor& t, const Init& init) {
    become(t, filled({t.shape(), t.dtype(), device}, init, {seed, stream_of(path)}, {}));
  });
}

void initialize(Module& root, uint64_t seed, const LayoutOf& layout_of) {
  for_each(root, TensorVisitor::all, [&](const std::string& path, Tensor& t, const Init& init) {
    const TensorMeta meta{t.shape(), t.dtype(), kCpu};
    become(t, filled(meta, init, {seed, stream_of(path)}, layout_of(path, meta)));
  });
}

void load(Module& root, const std::vector<NamedParameter>& source, Device device) {
  std::map<std::string_view, const Tensor*> left;
  for (const NamedParameter& s : source) left[s.name] = &s.tensor;
  std::string wrong;
  std::vector<std::pair<Tensor, const Tensor*>> pairs;
  for_each(root, TensorVisitor::parameters | TensorVisitor::persistent_buffers,
           [&](const std::string& path, Tensor& t, const Init&) {
             const auto found = left.find(path);
             if (found == left.end()) {
               wrong += concat("; ", path, " is missing");
               return;
             }
             const Tensor& from = *found->second;
             if (from.shape() == t.shape() && from.dtype() == t.dtype()) {
               pairs.emplace_back(t, &from);
             } else {
               wrong += concat("; ", path, " is ", from.meta(), ", expected ", t.meta());
             }
             left.erase(found);
           });
  for (const auto& [name, tensor] : left) wrong += concat("; ", name, " is not in the model");
  if (!wrong.empty()) {
    fail<DataError>("load", "the parameters given do not fit the model: ", wrong.substr(2));
  }
  // What checkpoints do not hold is made as initialize would; it follows from no seed.
  for_each(root, TensorVisitor::other_buffers,
           [&](const std::string& path, Tensor& t, const Init& init) {
             if (t.device().is_meta())
               become(t, filled({t.shape(), t.dtype(), device}, init, {0, stream_of(path)}, {}));
           });
  for (const auto& [to, from] : pairs) {
    const Tensor whole = from->is_distributed() ? full_tensor(*from) : from->detach();
    become(to,
           to.is_distributed() ? distribute(whole, layout_of(to)) : to_device(copy(whole), device));
  }
}

}  // namespace tessera::nn
