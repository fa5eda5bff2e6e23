// SPDX-License-Identifier: Apache-2.0
// What is done with all parameters and buffers of a module tree: listing, counting, filling,
// loading, freezing. Filling and loading give bytes to the tensors that are there, so handles on
// them (an optimizer's, a tied layer's) stay good.
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
/// All buffers, or only those that checkpoints hold.
TESSERA_API std::vector<NamedParameter> named_buffers(Module& root, bool persistent_only = false);
struct NamedModule {
  std::string name;
  Module* module;
};
/// The root under the empty name, then all modules below it.
TESSERA_API std::vector<NamedModule> named_modules(Module& root);
/// Number of elements of all parameters.
TESSERA_API int64_t parameter_count(Module& root);
/// Freezes (false) or thaws all parameters of `root`; frozen ones get no gradient. It holds for
/// parameters that have no bytes yet too.
TESSERA_API void set_requires_grad(Module& root, bool on);

/// Makes every parameter and buffer on `device`, filled by its Init. Frozen parameters stay so.
TESSERA_API void initialize(Module& root, uint64_t seed, Device device = kCpu);
/// How each parameter or buffer lies, by its name and global meta; empty: plain.
using LayoutOf = std::function<Layout(const std::string& name, const TensorMeta& meta)>;
/// The same, distributed: each rank makes its own part, with the bits that the whole would have.
TESSERA_API void initialize(Module& root, uint64_t seed, const LayoutOf& layout_of);
/// Makes every parameter and persistent buffer from `source`, an equal shape and dtype under its
/// name; one that is distributed keeps its layout.
/// DataError names what is missing, unknown or of another shape or dtype, all at once.
TESSERA_API void load(Module& root, const std::vector<NamedParameter>& source,
                      Device device = kCpu);

}  // namespace tessera::nn
