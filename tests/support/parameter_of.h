// SPDX-License-Identifier: Apache-2.0
// For tests: one parameter of any model.
#pragma once

#include "tessera/nn/parameters.h"

#include <stdexcept>
#include <string_view>

namespace tessera::test {

inline Tensor parameter_of(nn::Module& root, std::string_view name) {
  for (const auto& p : nn::named_parameters(root)) {
    if (p.name == name) return p.tensor;
  }
  throw std::logic_error(concat("the model has no parameter ", name));
}

}  // namespace tessera::test
