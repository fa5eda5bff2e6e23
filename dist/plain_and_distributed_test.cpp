// SPDX-License-Identifier: Apache-2.0
// Where a plain tensor is given in the place of a distributed one, or the other way round, and what
// is done to plain tensors alone.
#include "tessera/autograd/autograd.h"
#include "tessera/autograd/to.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/index_put/index_put.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using test::error_of;
using test::on_ranks;

// A gradient is distributed as its tensor is.
TEST(PlainAndDistributed, NeitherIsAGradientOfTheOther) {
  on_ranks(2, [](World&) {
    const Layout whole = Layout::replicated(Mesh::make({{"dp", 2}}));
    const Tensor plain = ones({4}).set_requires_grad(),
                 spread = distribute(ones({4}), whole).set_requires_grad();
    EXPECT_EQ(error_of<LayoutError>([&] { backward(spread * 2, {.gradient = ones({4})}); }),
              "[backward] the gradient given is plain, but the output is distributed: distribute() "
              "the gradient");
    EXPECT_EQ(error_of<LayoutError>([&] { backward(plain * 2, {.gradient = spread.detach()}); }),
              "[backward] the gradient given is distributed, but the output is plain: take "
              "full_tensor() of the gradient");
    register_hook(spread, [](const Tensor&) { return ones({4}); });
    EXPECT_EQ(error_of<LayoutError>([&] { backward(sum(spread * 2)); }),
              "[hook] gave a plain gradient f32[4] for a distributed one of the leaf f32[4]");
    register_hook(plain, [&](const Tensor&) { return spread.detach(); });
    EXPECT_EQ(error_of<LayoutError>([&] { backward(sum(plain * 2)); }),
              "[hook] gave a distributed gradient f32[4] for a plain one of the leaf f32[4]");
  });
}

TEST(PlainAndDistributed, WhatARankCannotDoAloneIsRefused) {
  on_ranks(2, [](World&) {
    const Tensor x = distribute(ones({4}), Layout::replicated(Mesh::make({{"dp", 2}})));
    EXPECT_EQ(error_of<LayoutError>([&] { (void)to(x, kMeta); }),
              "[to] f32[4] is distributed: its mesh decides where it lies; move its local() or "
              "full_tensor() to meta");
    EXPECT_EQ(
        error_of<LayoutError>([&] { (void)nonzero(x); }),
        "[nonzero] f32[4] is distributed: how many elements are not zero differs from rank to "
        "rank; take local(), or full_tensor() first");
  });
}

}  // namespace
}  // namespace tessera
