// SPDX-License-Identifier: Apache-2.0
// For tests of models that come from Hugging Face and go there.
#pragma once

#include "tessera/core/tensor.h"
#include "tessera/train/exchange/weights.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::train {

/// The folders hold the same tensors, bit for bit. Needs a Context.
inline void expect_equal_weights(const std::string& folder, const std::string& other) {
  const HfWeights a(folder), b(other);
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  const auto whole = [](const HfWeights& weights, const std::string& name) {
    const Shape shape(weights.tensors().at(name).shape);
    const Tensor x = weights.read(name, Shape::filled(shape.rank(), 0), shape);
    return std::string(static_cast<const char*>(x.read_data()),
                       static_cast<size_t>(x.numel() * item_size(x.dtype())));
  };
  for (const auto& [name, stored] : a.tensors()) {
    const auto there = b.tensors().find(name);
    ASSERT_NE(there, b.tensors().end()) << name;
    EXPECT_EQ(there->second.dtype, stored.dtype) << name;
    ASSERT_EQ(there->second.shape, stored.shape) << name;
    EXPECT_EQ(whole(b, name), whole(a, name)) << name;
  }
}

}  // namespace tessera::train
