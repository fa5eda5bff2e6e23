// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/permutation/permutation.h"

#include "tessera/core/context.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace tessera {
namespace {

TEST(Permutation, HoldsEachPlaceOnce) {
  Context context;
  for (const int64_t n : {0, 1, 2, 95, 1000, 200000}) {
    auto v = permutation(n, {1, 2}).values();
    ASSERT_EQ(static_cast<int64_t>(v.size()), n);
    std::ranges::sort(v);
    for (size_t i = 0; i < v.size(); ++i) ASSERT_EQ(v[i], static_cast<double>(i));
  }
}

// Sorted by its numbers, as the definition says, where 32 bits of 200,000 of them tie too.
TEST(Permutation, KeepsToTheDefinition) {
  Context context;
  const op::Permutation p{200000, {7, 8}, 0, 200000, kCpu};
  const auto v = call(p, {}).values();
  for (size_t i = 1; i < v.size(); ++i)
    ASSERT_LT(p.weight(static_cast<uint64_t>(v[i - 1])), p.weight(static_cast<uint64_t>(v[i])));
  EXPECT_EQ(call(op::Permutation{200000, {7, 8}, 500, 10, kCpu}, {}).values(),
            std::vector<double>(v.begin() + 500, v.begin() + 510));
  EXPECT_EQ(permutation(50, {7, 8}).values(), permutation(50, {7, 8}).values());
  EXPECT_NE(permutation(50, {7, 8}).values(), permutation(50, {7, 9}).values());
  EXPECT_NE(permutation(50, {7, 8}).values(), permutation(50, {8, 8}).values());
}

TEST(Permutation, EveryOrderIsEquallyLikely) {
  Context context;
  std::map<std::vector<double>, int> seen;
  for (uint64_t stream = 0; stream < 6000; ++stream) ++seen[permutation(3, {1, stream}).values()];
  EXPECT_EQ(seen.size(), 6u);
  for (const auto& [order, count] : seen) EXPECT_NEAR(count, 1000, 150);
}

TEST(Permutation, Errors) {
  Context context;
  EXPECT_THROW((void)permutation(-1, {1, 2}), ShapeError);
}

}  // namespace
}  // namespace tessera
