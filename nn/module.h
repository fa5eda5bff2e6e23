// SPDX-License-Identifier: Apache-2.0
// Module: a part of a model. It lists its members once, in visit(); parameters, initialisation,
// plans and checkpoints are visitors over that list. Parameters are made on the meta device and get
// bytes when they are initialised, so that a model can be planned before it exists and each rank
// can make only its own piece.
#pragma once

#include "tessera/core/context.h"
#include "tessera/core/tensor.h"
#include "tessera/dist/layout.h"
#include "tessera/kernels/fill/fill.h"

#include <functional>
#include <memory>
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

class Visitor;

class TESSERA_API Module {
 public:
  Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  virtual ~Module() = default;
  /// Lists parameters and children by name, in a fixed order.
  virtual void visit(Visitor& visitor) = 0;
  /// The name that the parent listed this module under (`wq`, `layers.3`); empty for a root.
  [[nodiscard]] const std::string& name() const { return name_; }

 protected:
  /// Names this module in errors and in anomaly mode while its forward runs.
  [[nodiscard]] ModuleScope scope() const { return ModuleScope(name_); }

 private:
  friend class Visitor;
  std::string name_;
};

/// Walks a module tree. Names given to the virtual functions are full paths
/// (`layers.3.attention.wq.weight`).
class TESSERA_API Visitor {
 public:
  virtual ~Visitor() = default;
  virtual void on_parameter(const std::string& path, Tensor& parameter, const Init& init) = 0;
  virtual void on_module(const std::string& /*path*/, Module& /*module*/) {}

  // What Module::visit calls.
  void parameter(std::string_view name, Tensor& tensor, const Init& init);
  void child(std::string_view name, Module& module);
  template <class M>
  void children(std::string_view name, std::vector<std::unique_ptr<M>>& modules) {
    for (size_t i = 0; i < modules.size(); ++i) child(concat(name, '.', i), *modules[i]);
  }

 private:
  [[nodiscard]] std::string join(std::string_view name) const;
  std::string path_;
};

struct NamedParameter {
  std::string name;
  Tensor tensor;
};
/// All parameters in the order of visit().
TESSERA_API std::vector<NamedParameter> named_parameters(Module& root);
/// Number of elements of all parameters.
TESSERA_API int64_t parameter_count(Module& root);
/// Makes every parameter on `device`, filled by its Init and requiring grad.
TESSERA_API void initialize(Module& root, uint64_t seed, Device device = kCpu);
/// How each parameter lies, by its name and global meta.
using LayoutOf = std::function<const Layout*(const std::string& name, const TensorMeta& meta)>;
/// The same, distributed: each rank makes its own part, with the bits that the whole would have.
TESSERA_API void initialize(Module& root, uint64_t seed, const LayoutOf& layout_of);
/// Makes every parameter from `source`, an equal shape and dtype under its name, requiring grad; a
/// parameter that is distributed keeps its layout.
/// DataError names what is missing, unknown or of another shape or dtype, all at once.
TESSERA_API void load(Module& root, const std::vector<NamedParameter>& source,
                      Device device = kCpu);

}  // namespace tessera::nn
