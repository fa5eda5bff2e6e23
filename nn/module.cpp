// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/module.h"

#include "tessera/dist/dtensor.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <map>

namespace tessera::nn {

std::string Visitor::join(std::string_view name) const {
  return path_.empty() ? std::string(name) : concat(path_, '.', name);
}

void Visitor::parameter(std::string_view name, Tensor& tensor, const Init& init) {
  on_parameter(join(name), tensor, init);
}

void Visitor::child(std::string_view name, Module& module) {
  module.name_ = name;
  const std::string outer = path_;
  path_ = join(name);
  on_module(path_, module);
  module.visit(*this);
  path_ = outer;
}

namespace {

template <class F> class ParameterVisitor final : public Visitor {
 public:
  explicit ParameterVisitor(F f) : f_(std::move(f)) {}
  void on_parameter(const std::string& path, Tensor& parameter, const Init& init) override {
    f_(path, parameter, init);
  }

 private:
  F f_;
};

template <class F> void for_each_parameter(Module& root, F f) {
  ParameterVisitor<F> visitor(std::move(f));
  root.visit(visitor);
}

// Lying as `layout`, or plain where that is null.
Tensor filled(const TensorMeta& meta, const Init& init, RngKey key, const Layout* layout) {
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

}  // namespace

std::vector<NamedParameter> named_parameters(Module& root) {
  std::vector<NamedParameter> list;
  for_each_parameter(root, [&](const std::string& path, const Tensor& p, const Init&) {
    list.push_back({path, p});
  });
  return list;
}

int64_t parameter_count(Module& root) {
  int64_t count = 0;
  for_each_parameter(root,
                     [&](const std::string&, const Tensor& p, const Init&) { count += p.numel(); });
  return count;
}

void initialize(Module& root, uint64_t seed, Device device) {
  for_each_parameter(root, [&](const std::string& path, Tensor& p, const Init& init) {
    p = filled({p.shape(), p.dtype(), device}, init, {seed, stream_of(path)}, nullptr);
    p.set_requires_grad();
  });
}

void initialize(Module& root, uint64_t seed, const LayoutOf& layout_of) {
  for_each_parameter(root, [&](const std::string& path, Tensor& p, const Init& init) {
    const TensorMeta meta{p.shape(), p.dtype(), kCpu};
    p = filled(meta, init, {seed, stream_of(path)}, layout_of(path, meta));
    p.set_requires_grad();
  });
}

void load(Module& root, const std::vector<NamedParameter>& source, Device device) {
  std::map<std::string_view, const Tensor*> left;
  for (const NamedParameter& s : source) left[s.name] = &s.tensor;
  std::string wrong;
  std::vector<std::pair<Tensor*, const Tensor*>> pairs;
  for_each_parameter(root, [&](const std::string& path, Tensor& p, const Init&) {
    const auto found = left.find(path);
    if (found == left.end()) {
      wrong += concat("; ", path, " is missing");
      return;
    }
    const Tensor& from = *found->second;
    if (from.shape() == p.shape() && from.dtype() == p.dtype()) {
      pairs.emplace_back(&p, &from);
    } else {
      wrong += concat("; ", path, " is ", from.meta(), ", expected ", p.meta());
    }
    left.erase(found);
  });
  for (const auto& [name, tensor] : left) wrong += concat("; ", name, " is not in the model");
  if (!wrong.empty()) {
    fail<DataError>("load", "the parameters given do not fit the model: ", wrong.substr(2));
  }
  for (const auto& [to, from] : pairs) {
    const Layout* layout = to->impl().layout;
    const Tensor whole = from->is_distributed() ? full(*from) : from->detach();
    *to = layout ? distribute(whole, layout) : to_device(copy(whole), device);
    to->set_requires_grad();
  }
}

}  // namespace tessera::nn
