// SPDX-License-Identifier: Apache-2.0
// Printed tensors beside PyTorch's own text, but for names of dtypes and ops.
#include "tessera/core/context.h"
#include "tessera/core/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <iomanip>
#include <limits>
#include <numeric>
#include <sstream>

namespace tessera {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

class Print : public testing::Test {
 protected:
  // 0, 1, 2 ... in row-major order.
  static Tensor counting(const Shape& shape, DType dtype = DType::f32) {
    std::vector<double> values(static_cast<size_t>(shape.numel()));
    std::iota(values.begin(), values.end(), 0);
    return from_values(values, shape, dtype);
  }
  Context context_;
};

TEST_F(Print, RowsAreAlignedInColumns) {
  EXPECT_EQ(concat(tensor({{1, 2}, {3, 4}})),
            "tensor([[1., 2.],\n"
            "        [3., 4.]])");
  EXPECT_EQ(concat(tensor({{1, -200}, {30, 0}})),
            "tensor([[   1., -200.],\n"
            "        [  30.,    0.]])");
}

TEST_F(Print, FractionsHaveFourDecimals) {
  EXPECT_EQ(concat(tensor({{1, 2}, {3, 4.5}})),
            "tensor([[1.0000, 2.0000],\n"
            "        [3.0000, 4.5000]])");
  EXPECT_EQ(concat(tensor({-0.5, 12.34567})), "tensor([-0.5000, 12.3457])");
}

TEST_F(Print, WideRangesAreScientific) {
  EXPECT_EQ(concat(tensor({1, 1000})), "tensor([   1., 1000.])");
  EXPECT_EQ(concat(tensor({1, 2000})), "tensor([1.0000e+00, 2.0000e+03])");
  EXPECT_EQ(concat(tensor({0, -1e9})), "tensor([ 0.0000e+00, -1.0000e+09])");
  EXPECT_EQ(concat(tensor({0.00001})), "tensor([1.0000e-05])");
  EXPECT_EQ(concat(tensor({1e-300, 1e300}, DType::f64)),
            "tensor([1.0000e-300, 1.0000e+300], dtype=f64)");
}

TEST_F(Print, NansAndInfinitiesDecideNoFormat) {
  EXPECT_EQ(concat(tensor({1, std::nan(""), -kInf})), "tensor([1., nan, -inf])");
  EXPECT_EQ(concat(tensor({100, -std::nan(""), kInf, 0})), "tensor([100.,  nan,  inf,   0.])");
  EXPECT_EQ(concat(tensor({0.5, kInf})), "tensor([0.5000,    inf])");
  EXPECT_EQ(concat(tensor({0, std::nan("")})), "tensor([0., nan])");
}

TEST_F(Print, IntegersAndBoolsNeedNoDtype) {
  EXPECT_EQ(concat(tensor({1, -20, 300}, DType::i64)), "tensor([  1, -20, 300])");
  EXPECT_EQ(concat(tensor({1, 0}, DType::bool_)), "tensor([ True, False])");
}

TEST_F(Print, IntegersAreExact) {
  const Tensor x = empty({1}, DType::i64);
  x.data<int64_t>()[0] = (int64_t{1} << 53) + 1;
  EXPECT_EQ(concat(x), "tensor([9007199254740993])");
}

TEST_F(Print, OtherDtypesAreNamed) {
  EXPECT_EQ(concat(tensor({1.5}, DType::bf16)), "tensor([1.5000], dtype=bf16)");
  EXPECT_EQ(concat(tensor({1, 20}, DType::i32)), "tensor([ 1, 20], dtype=i32)");
  EXPECT_EQ(concat(tensor({7, 255}, DType::u8)), "tensor([  7, 255], dtype=u8)");
}

TEST_F(Print, ZeroDimTensorsHaveNoBrackets) {
  EXPECT_EQ(concat(tensor(3)), "tensor(3.)");
  EXPECT_EQ(concat(tensor(0.25, DType::f64)), "tensor(0.2500, dtype=f64)");
  EXPECT_EQ(concat(tensor(-7, DType::i64)), "tensor(-7)");
}

TEST_F(Print, EmptyTensorsSayTheirSize) {
  EXPECT_EQ(concat(empty({0})), "tensor([])");
  EXPECT_EQ(concat(empty({0}, DType::i64)), "tensor([], dtype=i64)");
  EXPECT_EQ(concat(empty({0, 3})), "tensor([], size=(0, 3))");
  EXPECT_EQ(concat(empty({2, 0, 1}, DType::bool_)), "tensor([], size=(2, 0, 1), dtype=bool)");
}

TEST_F(Print, WhatHasNoBytesPrintsItsSize) {
  EXPECT_EQ(concat(empty({5}, DType::f32, kMeta)), "tensor(..., device='meta', size=(5,))");
  EXPECT_EQ(concat(empty({}, DType::i64, kMeta)), "tensor(..., device='meta', size=(), dtype=i64)");
  EXPECT_EQ(concat(empty({0, 2}, DType::bf16, kMeta)),
            "tensor(..., device='meta', size=(0, 2), dtype=bf16)");
  const Tensor released = tensor({1, 2});
  released.storage().release_bytes();
  EXPECT_EQ(concat(released), "tensor(..., size=(2,), storage=released)");
  EXPECT_EQ(concat(Tensor()), "tensor(undefined)");
}

TEST_F(Print, DimsAboveTwoAreSetApartByEmptyLines) {
  EXPECT_EQ(concat(counting({2, 2, 2}, DType::i64)),
            "tensor([[[0, 1],\n"
            "         [2, 3]],\n"
            "\n"
            "        [[4, 5],\n"
            "         [6, 7]]])");
  EXPECT_EQ(concat(counting({2, 1, 1, 1}, DType::i64)),
            "tensor([[[[0]]],\n"
            "\n"
            "\n"
            "        [[[1]]]])");
}

TEST_F(Print, LongRowsBreakAtEightyColumns) {
  EXPECT_EQ(concat(counting({20})),
            "tensor([ 0.,  1.,  2.,  3.,  4.,  5.,  6.,  7.,  8.,  9., 10., 11., 12., 13.,\n"
            "        14., 15., 16., 17., 18., 19.])");
}

TEST_F(Print, BeyondAThousandElementsTheEdgesAreShown) {
  EXPECT_EQ(concat(counting({1001}, DType::i64)),
            "tensor([   0,    1,    2,  ...,  998,  999, 1000])");
  EXPECT_EQ(concat(counting({7, 2, 100}, DType::i32)),
            "tensor([[[   0,    1,    2,  ...,   97,   98,   99],\n"
            "         [ 100,  101,  102,  ...,  197,  198,  199]],\n"
            "\n"
            "        [[ 200,  201,  202,  ...,  297,  298,  299],\n"
            "         [ 300,  301,  302,  ...,  397,  398,  399]],\n"
            "\n"
            "        [[ 400,  401,  402,  ...,  497,  498,  499],\n"
            "         [ 500,  501,  502,  ...,  597,  598,  599]],\n"
            "\n"
            "        ...,\n"
            "\n"
            "        [[ 800,  801,  802,  ...,  897,  898,  899],\n"
            "         [ 900,  901,  902,  ...,  997,  998,  999]],\n"
            "\n"
            "        [[1000, 1001, 1002,  ..., 1097, 1098, 1099],\n"
            "         [1100, 1101, 1102,  ..., 1197, 1198, 1199]],\n"
            "\n"
            "        [[1200, 1201, 1202,  ..., 1297, 1298, 1299],\n"
            "         [1300, 1301, 1302,  ..., 1397, 1398, 1399]]], dtype=i32)");
}

TEST_F(Print, AThousandElementsAreShownWhole) {
  EXPECT_EQ(concat(counting({10, 100}, DType::i64)).find("..."), std::string::npos);
}

TEST_F(Print, HiddenElementsDecideNoFormat) {
  const Tensor x = counting({1001});
  x.data<float>()[500] = 0.5f;
  EXPECT_EQ(concat(x), "tensor([   0.,    1.,    2.,  ...,  998.,  999., 1000.])");
}

TEST_F(Print, ViewsPrintTheirOwnElements) {
  EXPECT_EQ(concat(alias(counting({2, 3}, DType::i64), {3, 1}, {1, 3}, 3)),
            "tensor([[3],\n"
            "        [4],\n"
            "        [5]])");
}

TEST_F(Print, LeavesSayThatTheyRequireGrad) {
  EXPECT_EQ(concat(tensor({1, 2}).set_requires_grad()), "tensor([1., 2.], requires_grad=True)");
}

TEST_F(Print, SuffixesMoveToALineOfTheirOwn) {
  const Tensor x = counting({15}, DType::f64);
  EXPECT_EQ(concat(Tensor(x).set_requires_grad()),
            "tensor([ 0.,  1.,  2.,  3.,  4.,  5.,  6.,  7.,  8.,  9., 10., 11., 12., 13.,\n"
            "        14.], dtype=f64, requires_grad=True)");
  EXPECT_EQ(concat(counting({12}, DType::f64).set_requires_grad()),
            "tensor([ 0.,  1.,  2.,  3.,  4.,  5.,  6.,  7.,  8.,  9., 10., 11.], dtype=f64,\n"
            "       requires_grad=True)");
}

TEST_F(Print, FlagsOfTheStreamChangeNothing) {
  std::ostringstream out;
  out << std::setprecision(1) << std::scientific << tensor({1.25});
  EXPECT_EQ(out.str(), "tensor([1.2500])");
}

}  // namespace
}  // namespace tessera
