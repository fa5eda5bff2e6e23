// SPDX-License-Identifier: Apache-2.0
// For tests of distributed tensors: values that are easy to tell apart, and comparisons with what
// one rank computes.
#pragma once

#include "tessera/autograd/autograd.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/world.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

namespace tessera::trial {

/// What `f` throws, as text; a failure of the test if it throws nothing.
template <class E> std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

/// Numbers without a pattern that cuts could hide behind: unlike, of both signs, equal on all
/// ranks.
inline Tensor numbers(const Shape& shape, double salt = 0, DType dtype = DType::f64) {
  std::vector<double> v(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = std::sin(1.7 * static_cast<double>(i) + salt) + 0.01 * static_cast<double>(i % 7);
  return from_values(v, shape, dtype);
}

/// A distributed variable.
inline Tensor variable(const Tensor& whole, Layout layout) {
  return distribute(whole, layout).set_requires_grad();
}
inline Tensor variable(const Tensor& whole) {
  Tensor x = whole.detach();
  return x.set_requires_grad();
}

inline std::vector<double> whole_values(const Tensor& x) {
  return x.is_distributed() ? full_tensor(x).values() : x.values();
}

/// Shapes and values agree, distributed or not.
inline void expect_same(const Tensor& got, const Tensor& want, double tolerance = 1e-12) {
  ASSERT_TRUE(got.defined() && want.defined());
  ASSERT_EQ(got.shape(), want.shape());
  ASSERT_EQ(got.dtype(), want.dtype());
  const auto a = whole_values(got), b = whole_values(want);
  for (size_t i = 0; i < b.size(); ++i) {
    if (tolerance == 0 || std::isnan(b[i])) ASSERT_EQ(a[i], b[i]) << "element " << i;
    else ASSERT_NEAR(a[i], b[i], tolerance * (1 + std::abs(b[i]))) << "element " << i;
  }
}

/// The parts that ranks hold of a value that each of them should hold alike are equal, bit for bit.
inline void expect_equal_on_all_ranks(const Tensor& x) {
  World& world = World::current();
  const Tensor part = local(x), all = empty({world.size() * part.numel()}, part.dtype());
  const Tensor flat = alias(part, {part.numel()}, {1}, part.offset());
  ASSERT_TRUE(part.is_contiguous());
  world.group().all_gather(flat, all)->wait();
  const auto mine = part.values(), everyone = all.values();
  for (size_t i = 0; i < everyone.size(); ++i) ASSERT_EQ(everyone[i], mine[i % mine.size()]);
}

inline std::string placements(const Tensor& x) { return layout_of(x).placements_text(); }

}  // namespace tessera::trial

#define TESSERA_EXPECT_HOLDS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)
