// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/containers.h"

#include <string>

namespace tessera::nn {

void Sequential::visit(Visitor& visitor) {
  for (size_t i = 0; i < elements_.size(); ++i)
    visitor.child(std::to_string(i), *elements_[i].module);
}

Tensor Sequential::forward(const Tensor& x) const {
  Tensor y = x;
  for (const Element& element : elements_) y = element.call(*element.module, y);
  return y;
}

}  // namespace tessera::nn
