// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/norm.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/nn/parameters.h"

#include <gtest/gtest.h>

namespace tessera::nn {
namespace {

// The values of `norm` on x, with random parameters that are equal for all norms of these names.
template <class N> std::vector<double> values_of(N& norm, const Tensor& x) {
  initialize(norm, 0);
  for (const auto& p : named_parameters(norm))
    copy_values(p.tensor, normal(p.tensor.shape(), {p.name.size(), 1}, 0.5, 1, p.tensor.dtype()));
  return norm(x).values();
}

TEST(Norm, IsTheNormOfItsKind) {
  const Session session;
  const Tensor x = normal({3, 7}, {1, 2}, 0.3, 2, DType::f64);
  for (const double offset : {0., 1.}) {
    Norm norm({.dim = 7, .eps = 1e-3, .weight_offset = offset, .dtype = DType::f64});
    RmsNorm same({.dim = 7, .eps = 1e-3, .weight_offset = offset, .dtype = DType::f64});
    initialize(norm, 0);
    EXPECT_EQ(norm.weight.values(), std::vector<double>(7, 1 - offset));
    EXPECT_EQ(values_of(norm, x), values_of(same, x));
  }
  for (const bool bias : {false, true}) {
    Norm norm({.kind = Norm::Kind::layer, .dim = 7, .bias = bias, .dtype = DType::f64});
    LayerNorm same({.dim = 7, .bias = bias, .dtype = DType::f64});
    EXPECT_EQ(norm.bias.defined(), bias);
    EXPECT_EQ(values_of(norm, x), values_of(same, x));
    EXPECT_THROW((void)norm(normal({3, 6}, {1, 2}, 0, 1, DType::f64)), ShapeError);
  }
}

}  // namespace
}  // namespace tessera::nn
