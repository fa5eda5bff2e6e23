// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/matmul/einsum.h"

#include "tessera/core/context.h"
#include "tessera/kernels/fill/fill.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

std::string message_of(std::string_view equation, const std::vector<Tensor>& operands) {
  try {
    (void)einsum(equation, operands);
  } catch (const Error& e) {
    return concat(e.kind(), ' ', e.what());
  }
  return "nothing was thrown";
}

TEST(Einsum, KnownValues) {
  Context context;
  const Tensor a = tensor({{1, 2}, {3, 4}}), v = tensor({5, 6});
  EXPECT_EQ(einsum("ij,j->i", {a, v}).values(), (std::vector<double>{17, 39}));
  EXPECT_EQ(einsum("ij,i", {a, v}).values(), (std::vector<double>{23, 34}));
  EXPECT_EQ(einsum("ij->ji", {a}).values(), (std::vector<double>{1, 3, 2, 4}));
  EXPECT_EQ(einsum(" i j -> ", {a}).item(), 10);
  EXPECT_EQ(einsum("ij,kl,i->kj", {a, a, v}).values(), (std::vector<double>{69, 102, 161, 238}));
  EXPECT_EQ(einsum(",->", {tensor(2), tensor(3)}).item(), 6);
  EXPECT_EQ(einsum("aB,Bc->ac", {a, a}).values(), (std::vector<double>{7, 10, 15, 22}));
}

TEST(Einsum, ViewsAreNotCopied) {
  Context context;
  const Tensor a = zeros({2, 3});
  EXPECT_EQ(&einsum("ij->ji", {a}).storage(), &a.storage());
}

TEST(Einsum, NothingToSum) {
  Context context;
  EXPECT_EQ(einsum("ij,jk->ik", {zeros({2, 0}), zeros({0, 3})}).values(),
            std::vector<double>(6, 0));
  EXPECT_EQ(einsum("bij,bjk->bik", {zeros({0, 2, 3}), zeros({0, 3, 4})}).shape(), (Shape{0, 2, 4}));
}

TEST(Einsum, Errors) {
  Context context;
  const Tensor a = zeros({2, 3}), b = zeros({4, 5});
  EXPECT_EQ(message_of("ij,jk->ik", {a, b}),
            "ShapeError [einsum] 'j' of \"ij,jk->ik\" is 3 in operand 0 and 4 in operand 1: given "
            "f32[2, 3] and f32[4, 5]");
  EXPECT_EQ(
      message_of("i,i->", {zeros({3}), zeros({4})}),
      "ShapeError [einsum] 'i' of \"i,i->\" is 3 in operand 0 and 4 in operand 1: given f32[3] "
      "and f32[4]");
  EXPECT_EQ(message_of("ij,jkl->il", {a, b}),
            "ShapeError [einsum] operand 1 of \"ij,jkl->il\" has 3 letters for rank 2: given "
            "f32[4, 5]");
  EXPECT_EQ(
      message_of("ii->i", {a}),
      "ValueError [einsum] 'i' occurs twice in term 0 of \"ii->i\": expected each once; take a "
      "diagonal with diagonal()");
  EXPECT_EQ(message_of("ij->ik", {a}),
            "ValueError [einsum] 'k' of the result is in no operand of \"ij->ik\"");
  EXPECT_EQ(message_of("ij->ii", {a}),
            "ValueError [einsum] 'i' occurs twice in the result of \"ij->ii\": expected each once; "
            "take a diagonal with diagonal()");
  EXPECT_EQ(message_of("i1->i", {a}),
            "ValueError [einsum] terms have letters and ...: given '1' in \"i1->i\" (term 0)");
  EXPECT_EQ(message_of("i..j->i", {a}),
            "ValueError [einsum] an ellipsis has three dots: given \"i..j->i\" (term 0)");
  EXPECT_EQ(message_of("ij,jk->ik", {a}),
            "ValueError [einsum] \"ij,jk->ik\" has 2 terms: given 1 operand");
  EXPECT_EQ(
      message_of("ij->i->j", {a}),
      "ValueError [einsum] terms have letters and ...: given '-' in \"ij->i->j\" (the result)");
  EXPECT_EQ(message_of("ij,kl->ik", {a, zeros({4, 5}, DType::f64)}),
            "DTypeError [einsum] operands must share one dtype of f64, f32, bf16, f16: operand 0 "
            "is f32[2, 3], operand 1 is f64[4, 5]; cast one");
  EXPECT_EQ(message_of("i,i->", {zeros({3}, DType::i64), zeros({4}, DType::i64)}),
            "DTypeError [einsum] operand 0 is i64[3], expected one dtype of f64, f32, bf16, f16; "
            "cast it");
}

TEST(Einsum, SumsOverAnEllipsisThatTheResultLacks) {
  Context context;
  const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}});
  EXPECT_EQ(einsum("...i->i", {x}).values(), (std::vector<double>{5, 7, 9}));
  EXPECT_EQ(einsum("...->", {x}).values(), (std::vector<double>{21}));
  EXPECT_EQ(einsum("...i,...i->i", {x, x}).values(), (std::vector<double>{17, 29, 45}));
  EXPECT_EQ(einsum("...i,ij->j", {x, from_values({1, 0, 2}, {3, 1})}).values(),
            (std::vector<double>{23}));
}

}  // namespace
}  // namespace tessera
