// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/embedding/embedding.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/context.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/reduce/reduce.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

Tensor ids(std::initializer_list<Scalar> values) { return tensor(values, DType::i64); }

TEST(Embedding, TakesRows) {
  Context context;
  const Tensor table = tensor({{1, 2}, {3, 4}, {5, 6}});
  EXPECT_EQ(embedding(table, ids({2, 0})).values(), (std::vector<double>{5, 6, 1, 2}));
  EXPECT_EQ(embedding(table, tensor(1, DType::i64)).values(), (std::vector<double>{3, 4}));
  EXPECT_EQ(embedding(table, zeros({2, 0}, DType::i64)).shape(), (Shape{2, 0, 2}));
}

TEST(Embedding, PieceGivesZerosForOtherIds) {
  Context context;
  const Tensor rows = tensor({{3, 4}});
  EXPECT_EQ(call(op::Embedding{1, 3}, {rows, ids({0, 1, 2})}).values(),
            (std::vector<double>{0, 0, 3, 4, 0, 0}));
}

TEST(Embedding, BackwardAddsRowsOfEqualIds) {
  Context context;
  const Tensor dy = tensor({{1, 2}, {10, 20}, {100, 200}});
  const Tensor dw = call(op::EmbeddingBackward{3, 0, 0}, {dy, ids({2, 0, 2})});
  EXPECT_EQ(dw.values(), (std::vector<double>{10, 20, 0, 0, 101, 202}));
  // 300 ones are not 300 in bf16 unless they are added in f32.
  const Tensor narrow =
      call(op::EmbeddingBackward{2, 0, 0}, {ones({300, 1}, DType::bf16), zeros({300}, DType::i64)});
  EXPECT_EQ(narrow.values(), (std::vector<double>{300, 0}));
}

TEST(Embedding, NamesTheIdThatIsOutside) {
  Context context;
  try {
    (void)embedding(zeros({5, 2}), ids({4, 0, 5}));
    FAIL();
  } catch (const IndexError& e) {
    EXPECT_STREQ(e.what(), "[embedding] id 5 at position 2 is out of range: expected 0 to 4");
  }
  EXPECT_THROW((void)embedding(zeros({5, 2}), ids({-1})), IndexError);
}

TEST(Embedding, PaddingGetsNoGradient) {
  const Session session;
  Tensor table = tensor({{1, 2}, {3, 4}, {5, 6}});
  table.set_requires_grad();
  const Tensor y = embedding(table, ids({2, 0, 2}), -1);
  EXPECT_EQ(y.values(), (std::vector<double>{5, 6, 1, 2, 5, 6}));
  backward(sum(y));
  EXPECT_EQ(table.grad().values(), (std::vector<double>{1, 1, 0, 0, 0, 0}));
  EXPECT_THROW((void)embedding(table, ids({0}), 3), IndexError);
  EXPECT_THROW((void)embedding(table, ids({0}), -4), IndexError);
}

TEST(Embedding, TakesIdsOf32Bits) {
  Context context;
  EXPECT_EQ(embedding(tensor({{1, 2}, {3, 4}}), tensor({1}, DType::i32)).values(),
            (std::vector<double>{3, 4}));
}

}  // namespace
}  // namespace tessera
