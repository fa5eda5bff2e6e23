// SPDX-License-Identifier: Apache-2.0
// Functions over all parameters and buffers of a module tree: listing, counting, initialising,
// loading, copying, freezing. Initialising and loading fill the existing tensors, so handles of
// them (in an optimizer, a tied layer) stay valid.
#pragma once

#include "tessera/dist/layout.h"
#include "tessera/nn/module.h"

#include <functional>
#include <string>
#include <vector>

namespace tessera::nn {

struct NamedParameter {
  std::string name;
  Tensor tensor;
};
/// All parameters in the order of visit().
TESSERA_API std::vector<NamedParameter> named_parameters(Module& root);
/// The same without their names.
TESSERA_API std::vector<Tensor> parameters(Module& root);
/// All buffers, or only persistent ones, which checkpoints contain.
TESSERA_API std::vector<NamedParameter> named_buffers(Module& root, bool persistent_only = false);
struct NamedModule {
  std::string name;
  Module* module;
};
/// The root with an empty name, then all its descendants.
TESSERA_API std::vector<NamedModule> named_modules(Module& root);
/// Number of elements of all parameters.
TESSERA_API int64_t parameter_count(Module& root);
/// Freezes (false) or unfreezes all parameters of `root`; frozen ones get no gradient. Works before
/// initialisation too.
TESSERA_API void set_requires_grad(Module& root, bool on);

/// Allocates every parameter and buffer on `device` and fills it by its Init. Frozen parameters
/// stay frozen. Those that a pass gave a layout (fully_shard, tensor_parallel) keep it while its
/// world lives: each rank makes its own shard.
TESSERA_API void initialize(Module& root, uint64_t seed, Device device = kCpu);
/// The layout of each parameter or buffer, by its name and global meta; empty: plain.
using LayoutOf = std::function<Layout(const std::string& name, const TensorMeta& meta)>;
/// The same in these layouts. A shard has the bits of the unsharded tensor, whatever its device.
TESSERA_API void initialize(Module& root, uint64_t seed, const LayoutOf& layout_of,
                            Device device = kCpu);
/// Fills every parameter and persistent buffer from `source`, by name, with equal shape and dtype;
/// a distributed one, also without bytes (lay_out), keeps its layout. DataError names everything
/// that is missing, unknown or of another shape or dtype.
TESSERA_API void load(Module& root, const std::vector<NamedParameter>& source,
                      Device device = kCpu);

/// Copies `from` into the bytes of `to`, which keeps its dtype, device and layout. Not recorded.
/// ShapeError unless the shapes are equal.
TESSERA_API void copy_values(const Tensor& to, const Tensor& from);
/// Copies the values of all parameters and buffers of `from` into those of the same names in `to`,
/// as copy_values does; an uninitialised one is allocated in the layout of `from`. Gradients are
/// unchanged. DataError names everything that is missing, unknown or of another shape.
TESSERA_API void copy_parameters(Module& to, Module& from);
/// The same from a list of all parameters and buffers.
TESSERA_API void copy_parameters(Module& to, const std::vector<NamedParameter>& from);

}  // namespace tessera::nn
