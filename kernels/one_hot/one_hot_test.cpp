// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/one_hot/one_hot.h"

#include "tessera/core/context.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(OneHot, KnownValues) {
  Context context;
  const Tensor ids = tensor({2, 0}, DType::i64);
  const Tensor y = one_hot(ids, 3);
  EXPECT_EQ(y.values(), (std::vector<double>{0, 0, 1, 1, 0, 0}));
  EXPECT_EQ(y.dtype(), DType::i64);
  EXPECT_EQ(one_hot(ids, 3, DType::bf16).dtype(), DType::bf16);
  EXPECT_EQ(one_hot(reshape(ids, {1, 2}), 4).shape(), (Shape{1, 2, 4}));
}

TEST(OneHot, Edges) {
  Context context;
  EXPECT_EQ(one_hot(empty({0}, DType::i64), 0).shape(), (Shape{0, 0}));
  EXPECT_EQ(one_hot(tensor(1, DType::i64), 2).values(), (std::vector<double>{0, 1}));
  try {
    (void)one_hot(tensor({0, 3}, DType::i64), 3);
    FAIL() << "expected IndexError";
  } catch (const IndexError& e) {
    EXPECT_NE(std::string(e.what()).find("id 3 at position 1"), std::string::npos) << e.what();
  }
}

TEST(OneHot, TakesIdsOf32Bits) {
  Context context;
  EXPECT_EQ(one_hot(tensor({1, 0}, DType::i32), 2).values(), (std::vector<double>{0, 1, 1, 0}));
}

}  // namespace
}  // namespace tessera
