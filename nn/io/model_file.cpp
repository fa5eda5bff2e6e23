// SPDX-License-Identifier: Apache-2.0
// All ranks gather each tensor; the first of the mesh writes.
#include "tessera/nn/io/model_file.h"

#include "tessera/core/scopes.h"
#include "tessera/dist/dtensor.h"

#include <algorithm>

namespace tessera::nn {

std::vector<NamedParameter> model_tensors(Module& model) {
  std::vector<NamedParameter> all = named_parameters(model);
  for (auto& b : named_buffers(model, true)) all.push_back(std::move(b));
  return all;
}

bool is_first_of_mesh(const Tensor& t) {
  return !t.is_distributed() ||
         std::ranges::all_of(layout_of(t).mesh().coordinates(), [](int c) { return c == 0; });
}

void save(Module& model, const std::string& path, const io::Metadata& metadata, io::FileMode mode) {
  const NoGrad guard;
  std::vector<NamedParameter> tensors = model_tensors(model);
  bool writes = true;
  for (auto& [name, t] : tensors) {
    writes = writes && is_first_of_mesh(t);
    if (t.is_distributed()) t = full_tensor(t);
  }
  if (writes) io::write_safetensors(path, tensors, metadata, mode);
}

void load(Module& model, const std::string& path, Device device) {
  load(model, io::SafetensorsFile(path).read_all(), device);
}

}  // namespace tessera::nn
