// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/assign/assign.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Assign, ConvertsIntoWhatIsThere) {
  const Session session;
  const Tensor to = full({2, 3}, -1, DType::bf16), from = normal({2, 3}, {1, 2});
  const void* bytes = to.raw_data();
  assign_(to, from);
  EXPECT_EQ(to.raw_data(), bytes);
  EXPECT_EQ(to.values(), cast(from, DType::bf16).values());
}

TEST(Assign, WritesAStridedPartAlone) {
  const Session session;
  for (DType from : {DType::f32, DType::f64}) {
    const Tensor whole = zeros({2, 3});
    assign_(transpose(slice(whole, 1, {1, 3}), 0, 1),
            cast(from_values({1, 2, 3, 4}, {2, 2}), from));
    EXPECT_EQ(whole.values(), (std::vector<double>{0, 1, 3, 0, 2, 4}));
  }
}

TEST(Assign, IsSeenByAutograd) {
  const Session session;
  const Tensor x = tensor({1, 2}).set_requires_grad();
  EXPECT_THROW(assign_(x, tensor({3, 4})), InPlaceError);
  const NoGrad guard;
  assign_(x, tensor({3, 4}));
  EXPECT_EQ(x.values(), (std::vector<double>{3, 4}));
}

}  // namespace
}  // namespace tessera
