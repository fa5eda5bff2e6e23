// SPDX-License-Identifier: Apache-2.0
// Routes that samples are too small to take, and the messages for inner dimensions and of
// oneDNN; the laws check the rest.
#include "tessera/kernels/matmul/matmul.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/process.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/gemm_kinds_impl.h"
#include "tessera/kernels/matmul/peak.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/products/micro_tiles_impl.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/own_products.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

double worst(const Tensor& a, const Tensor& b) {
  const auto x = a.values(), y = b.values();
  double d = 0;
  for (size_t i = 0; i < x.size(); ++i) d = std::max(d, std::abs(x[i] - y[i]));
  return d;
}

// f(a, b, transpose_a, transpose_b) of fresh operands of an (m, k) by (k, n) product.
template <class F> void in_every_orientation(int64_t m, int64_t k, int64_t n, const F& f) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true})
      f(normal(ta ? Shape{k, m} : Shape{m, k}, {1, 2}),
        normal(tb ? Shape{n, k} : Shape{k, n}, {1, 3}), ta, tb);
  }
}

TEST(MatMul, WhatOneDnnRefusesIsNamed) {
  const Session session;
  if (!library_text().starts_with("oneDNN")) return;
  const std::string error = test::error_of<UsageError>(
      [] { library_gemm({.dtype = DType::f32, .m = -1, .n = 2, .k = 3}); });
  EXPECT_TRUE(error.starts_with("[matmul] oneDNN refused a -1 x 3 by 3 x 2 product of f32: "))
      << error;
}

TEST(MatMul, InnerDimensionsDiffer) {
  const Session session;
  try {
    (void)matmul(empty({8, 256, 512}, DType::bf16), empty({256, 8}, DType::bf16));
    FAIL() << "expected ShapeError";
  } catch (const ShapeError& e) {
    EXPECT_STREQ(e.what(),
                 "[matmul] inner dimensions differ: a is bf16[8, 256, 512], b is bf16[256, 8]");
  }
}

TEST(MatMul, LibraryAndOwnKernelAgreeInEveryOrientation) {
  const Session session;
  in_every_orientation(67, 129, 83, [](const auto& a, const auto& b, bool ta, bool tb) {
    const Tensor wide = matmul(cast(a, DType::f64), cast(b, DType::f64), ta, tb);
    EXPECT_LT(worst(matmul(a, b, ta, tb), wide), 1e-4);
    const Tensor narrow = matmul(cast(a, DType::bf16), cast(b, DType::bf16), ta, tb);
    EXPECT_EQ(narrow.dtype(), DType::bf16);
    EXPECT_LT(worst(narrow, wide), 0.4);
  });
}

// Sizes around those of blocks, tiles and panels; many columns at a time, batches, a few rows.
TEST(MatMul, ProductsOfOddSizesAgreeForAnyThreads) {
  struct Sizes {
    int64_t batch, m, k, n;
  };
  for (const auto& z :
       {Sizes{1, 16, 16, 16}, Sizes{1, 33, 31, 47}, Sizes{1, 100, 65, 1100}, Sizes{1, 17, 600, 900},
        Sizes{5, 48, 64, 70}, Sizes{40, 20, 40, 160}, Sizes{1, 70, 2500, 40}, Sizes{1, 9, 1, 5},
        Sizes{1, 1, 77, 1101}, Sizes{2, 2, 129, 130}, Sizes{3, 3, 65, 67}, Sizes{1, 4, 600, 257},
        Sizes{1, 1, 5000, 1}, Sizes{1, 2, 1, 5000}, Sizes{1, 150, 1024, 48},
        Sizes{2, 61, 385, 17}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const bool ta : {false, true}) {
        for (const bool tb : {false, true}) {
          std::vector<double> first;
          for (const int threads : {1, 2, 3}) {
            const Session session({.threads = threads});
            const Tensor a = cast(
                normal(ta ? Shape{z.batch, z.k, z.m} : Shape{z.batch, z.m, z.k}, {1, 2}), dtype);
            const Tensor b = cast(
                normal(tb ? Shape{z.batch, z.n, z.k} : Shape{z.batch, z.k, z.n}, {1, 3}), dtype);
            const Tensor c = matmul(a, b, ta, tb);
            if (threads == 1) {
              const Tensor wide = matmul(cast(a, DType::f64), cast(b, DType::f64), ta, tb);
              EXPECT_LT(worst(c, wide), dtype == DType::f32 ? 1e-3 : 1) << z.m << dtype << ta << tb;
              first = c.values();
            }
            if (test::own_products(dtype)) {
              EXPECT_EQ(c.values(), first) << z.m << dtype << threads;
            }
          }
        }
      }
    }
  }
}

// What a column of k sums to must not depend on which part of c it lies in: more rows than a part
// that keeps sums takes, more columns than a panel.
TEST(MatMul, PartsAndPanelsAgreeWithSlices) {
  const Session session({.threads = 2});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor a = cast(normal({1100, 2100}, {4, 2}), dtype),
                 b = cast(normal({1120, 2100}, {4, 3}), dtype);
    const Tensor whole = matmul(a, b, false, true);
    const Tensor part = matmul(narrow(a, 0, 1030, 70), narrow(b, 0, 1000, 120), false, true);
    if (test::own_products(dtype)) {
      EXPECT_EQ(narrow(narrow(whole, 0, 1030, 70), 1, 1000, 120).values(), part.values());
    }
    const Tensor wide =
        matmul(cast(narrow(a, 0, 0, 40), DType::f64), cast(b, DType::f64), false, true);
    EXPECT_LT(worst(narrow(whole, 0, 0, 40), wide), dtype == DType::f32 ? 1e-3 : 1);
  }
}

TEST(MatMul, FewRowsAgreeInEveryOrientation) {
  for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9, 12, 13}) {
    const Session session;
    in_every_orientation(rows, 1027, 333, [](const auto& a, const auto& b, bool ta, bool tb) {
      const Tensor wide = matmul(cast(a, DType::f64), cast(b, DType::f64), ta, tb);
      EXPECT_LT(worst(matmul(a, b, ta, tb), wide), 1e-3);
      EXPECT_LT(worst(matmul(cast(a, DType::bf16), cast(b, DType::bf16), ta, tb), wide), 1);
    });
  }
}

// Sums of f32 in an order of their own: what bf16 rounds is all that differs.
TEST(MatMul, FewRowsOfBf16AreRoundedOnce) {
  if (!micro::has_pair_products()) return;
  for (const int64_t rows : {1, 3, 8, 11}) {
    std::vector<std::vector<double>> first;
    for (const int threads : {1, 2, 3}) {
      const Session session({.threads = threads});
      size_t at = 0;
      in_every_orientation(rows, 769, 333, [&](const auto& a, const auto& b, bool ta, bool tb) {
        const Tensor x = cast(a, DType::bf16), y = cast(b, DType::bf16),
                     narrow = matmul(x, y, ta, tb);
        if (threads == 1) {
          const Tensor wide = matmul(cast(x, DType::f64), cast(y, DType::f64), ta, tb);
          const auto got = narrow.values(), want = wide.values();
          for (size_t i = 0; i < want.size(); ++i)
            ASSERT_NEAR(got[i], want[i], 1e-4 + std::abs(want[i]) / 256) << rows << ta << tb;
          first.push_back(got);
        } else {
          EXPECT_EQ(narrow.values(), first[at++]) << rows << ta << tb;
        }
      });
    }
  }
}

// As large as the library's, which other instruction sets leave it.
TEST(MatMul, ASingleColumnMayHaveAnyStride) {
  const Session session;
  const Isa isa = Process::get().isa();
  const Tensor a = select(normal({400, 1, 5}, {4, 1}), 2, 0);  // (400, 1), strides 5 and 5
  const Tensor b = normal({1, 300}, {4, 2}),
               wide = matmul(cast(a, DType::f64), cast(b, DType::f64));
  for (const Isa each : {isa, Isa::baseline}) {
    Process::get().limit_isa(each);
    EXPECT_LT(worst(matmul(a, b), wide), 1e-5);
    EXPECT_LT(worst(matmul(b, a, true, true), transpose(wide, 0, 1)), 1e-5);
  }
  Process::get().limit_isa(isa);
}

TEST(MatMul, PermutedOperandsAreReadInPlace) {
  const Session session;
  const Tensor a = normal({5, 7, 129, 3}, {2, 2}), b = normal({5, 7, 129, 64}, {2, 3});
  const Tensor at = transpose(a, 2, 3);  // (5, 7, 3, 129) by strides
  EXPECT_LT(worst(matmul(at, b), matmul(contiguous(at), b)), 1e-5);
}

TEST(MatMul, RowsOfOneFromAPermutedBatch) {
  const Session session;
  const Tensor x = transpose(normal({1, 5, 7}, {3, 1}), 0, 1),
               w = normal({4, 7}, {3, 2});  // (5, 1, 7)
  EXPECT_EQ(linear(x, w).values(), linear(reshape(x, {5, 7}), w).values());
}

TEST(MatMul, NoInnerElementsGiveZeros) {
  const Session session;
  EXPECT_EQ(matmul(empty({2, 0}), empty({0, 3})).values(), std::vector<double>(6, 0));
}

TEST(MatMul, AVectorIsARowOnTheLeftAndAColumnOnTheRight) {
  Context context;
  const Tensor a = tensor({{1, 2, 3}, {4, 5, 6}}), v = tensor({1, 0, -1}), w = tensor({2, 1});
  EXPECT_EQ(matmul(v, v).item(), 2);
  EXPECT_EQ(matmul(v, v).rank(), 0);
  EXPECT_EQ(matmul(a, v).values(), (std::vector<double>{-2, -2}));
  EXPECT_EQ(matmul(w, a).values(), (std::vector<double>{6, 9, 12}));
  EXPECT_EQ(matmul(a, w, true).values(), (std::vector<double>{6, 9, 12}));
  EXPECT_EQ(matmul(v, a, false, true).values(), (std::vector<double>{-2, -2}));
  EXPECT_EQ(matmul(zeros({2, 3, 4}), zeros({4})).shape(), (Shape{2, 3}));
  EXPECT_EQ(matmul(zeros({3}), zeros({2, 3, 4})).shape(), (Shape{2, 4}));
  EXPECT_EQ(linear(v, a).values(), (std::vector<double>{-2, -2}));
  EXPECT_EQ(linear(a, v).values(), (std::vector<double>{-2, -2}));
}

TEST(MatMul, VectorsOfOtherSizesAreNamed) {
  Context context;
  try {
    (void)matmul(zeros({2, 3}), zeros({2}));
    FAIL();
  } catch (const ShapeError& e) {
    EXPECT_STREQ(e.what(), "[matmul] inner dimensions differ: a is f32[2, 3], b is f32[2]");
  }
  EXPECT_THROW((void)matmul(zeros({3}), zeros({})), ShapeError);
}

TEST(Peak, IsThatOfTheThreadsAndOfFloatingDTypes) {
  const Session session({.threads = 1});
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
    EXPECT_GT(measure_peak(dtype, 0), 1e8) << dtype;
  EXPECT_THROW((void)measure_peak(DType::i64, 0), DTypeError);
}

}  // namespace
}  // namespace tessera
