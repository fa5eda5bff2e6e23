// SPDX-License-Identifier: Apache-2.0
// Keys of the plan cache: two ops that differ in anything that their plan reads are two keys.
#include "tessera/core/op_key.h"

#include "tessera/core/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tessera {
namespace {

template <class... A> void expect_differ(const std::tuple<A...>& a, const std::tuple<A...>& b) {
  EXPECT_FALSE(detail::same_attributes(a, b));
  EXPECT_NE(detail::hash_attributes(a), detail::hash_attributes(b));
}
template <class... A> void expect_same(const std::tuple<A...>& a, const std::tuple<A...>& b) {
  EXPECT_TRUE(detail::same_attributes(a, b));
  EXPECT_EQ(detail::hash_attributes(a), detail::hash_attributes(b));
}

TEST(OpKey, NumbersCompareByTheirBits) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_same(std::tuple(1, 2.5, true), std::tuple(1, 2.5, true));
  expect_same(std::tuple(nan), std::tuple(nan));
  expect_differ(std::tuple(0.0), std::tuple(-0.0));
  expect_differ(std::tuple(0.0f), std::tuple(-0.0f));
  expect_differ(std::tuple(1.0), std::tuple(std::nextafter(1.0, 2.0)));
  expect_differ(std::tuple(1, 2), std::tuple(2, 1));
}

TEST(OpKey, ListsCompareByElementAndLength) {
  expect_same(std::tuple(Shape{2, 3}), std::tuple(Shape{2, 3}));
  expect_differ(std::tuple(Shape{2, 3}), std::tuple(Shape{3, 2}));
  expect_differ(std::tuple(Shape{2}), std::tuple(Shape{2, 0}));
  expect_differ(std::tuple(Shape{}), std::tuple(Shape{0}));
  expect_differ(std::tuple(std::string("a"), std::string("bc")),
                std::tuple(std::string("ab"), std::string("c")));
}

TEST(OpKey, SmallTypesCompareByValue) {
  expect_same(std::tuple(DType::bf16, cuda(1)), std::tuple(DType::bf16, cuda(1)));
  expect_differ(std::tuple(DType::bf16, cuda(1)), std::tuple(DType::f16, cuda(1)));
  expect_differ(std::tuple(cuda(0)), std::tuple(cuda(1)));
  expect_same(std::tuple(), std::tuple());
}

}  // namespace
}  // namespace tessera
