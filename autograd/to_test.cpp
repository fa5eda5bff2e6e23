// SPDX-License-Identifier: Apache-2.0
#include "tessera/autograd/to.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(To, ADtypeIsRecorded) {
  const Session session;
  Tensor x = tensor({1, 2}).set_requires_grad();
  const Tensor y = to(x, DType::f64);
  EXPECT_EQ(y.dtype(), DType::f64);
  backward(sum(y * 3));
  EXPECT_EQ(x.grad().dtype(), DType::f32);
  EXPECT_EQ(x.grad().values(), (std::vector<double>{3, 3}));
}

TEST(To, ADeviceIsRecorded) {
  const Session session;
  Tensor x = tensor({1, 2}).set_requires_grad();
  const Tensor y = to(x, kMeta);
  EXPECT_TRUE(y.device().is_meta());
  EXPECT_EQ(y.shape(), x.shape());
  EXPECT_TRUE(y.requires_grad());
  EXPECT_FALSE(y.is_leaf());
  EXPECT_THROW(backward(sum(y)), DeviceError);  // a meta gradient has no values to bring back
}

TEST(To, ItselfWhereNothingChanges) {
  const Session session;
  const Tensor x = tensor({1, 2});
  EXPECT_EQ(to(x, kCpu).handle(), x.handle());
  EXPECT_EQ(to(x, DType::f32).handle(), x.handle());
}

}  // namespace
}  // namespace tessera
