// SPDX-License-Identifier: Apache-2.0
// What the laws cannot say: edges, the public function, values by hand.
#include "tessera/kernels/skeleton/skeleton.h"

#include "tessera/autograd/autograd.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Skeleton, KnownValues) {
  const Session session;
  EXPECT_EQ(skeleton(tensor({{1, 2}}), tensor({3, 4}), 2).values(), (std::vector<double>{6, 16}));
}

}  // namespace
}  // namespace tessera
