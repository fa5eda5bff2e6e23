// SPDX-License-Identifier: Apache-2.0
// Work against a count of pairs, and selected maps against the predicate asked anew.
#include "tessera/kernels/attention/seen_blocks.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace tessera {
namespace {

class SeenBlocksTest : public testing::Test {
 protected:
  // A part of 0 .. n - 1 in any order, rows of it alike or not.
  Tensor some(int64_t n, int64_t rows, bool shuffled) {
    std::vector<int64_t> all;
    const int64_t count = n == 0 ? 0 : static_cast<int64_t>(random_() % static_cast<unsigned>(n));
    for (int64_t b = 0; b < rows; ++b) {
      std::vector<int64_t> row(static_cast<size_t>(n));
      std::iota(row.begin(), row.end(), int64_t{0});
      if (shuffled) std::ranges::shuffle(row, random_);
      all.insert(all.end(), row.end() - count, row.end());
    }
    return from_span(all, rows == 1 ? Shape{count} : Shape{rows, count});
  }
  Session session_;
  unsigned seed_ = std::random_device{}();
  std::mt19937 random_{seed_};
};

int64_t total(const Tensor& counts) {
  const auto* first = counts.data<int64_t>();
  return std::accumulate(first, first + counts.numel(), int64_t{0});
}

TEST_F(SeenBlocksTest, WorkIsWhatTheMaskLeaves) {
  const auto work = [](int64_t queries, int64_t keys, const AttentionOptions& o) {
    return total(count_seen_blocks(1, queries, keys, o));
  };
  const AttentionMask causal = AttentionMask::causal();
  EXPECT_EQ(work(256, 256, {}), 16);
  EXPECT_EQ(work(256, 256, {.mask = causal}), 10);
  EXPECT_EQ(work(65, 129, {}), 6);
  EXPECT_EQ(work(64, 256, {.mask = causal, .query_start = 128}), 3);
  EXPECT_EQ(work(64, 256, {.mask = causal, .key_start = 64}), 0);  // all keys come later
  EXPECT_EQ(work(256, 256, {.mask = causal & AttentionMask::chunk(64)}), 4);
  EXPECT_EQ(work(0, 256, {}), 0);
  EXPECT_EQ(work(256, 0, {}), 0);
  const Tensor documents = from_span(std::vector<int64_t>(256, 3));
  EXPECT_EQ(work(256, 256,
                 {.mask = AttentionMask::document(),
                  .query_documents = documents,
                  .key_documents = documents}),
            16);
  EXPECT_EQ(
      work(128, 128,
           {.block_map = make_block_map({.queries = 128, .keys = 128},
                                        [](int64_t, int64_t q, int64_t) { return q == 70; })}),
      2);
}

// As of rows that a rank has none of.
TEST_F(SeenBlocksTest, ABatchOfNoneHasAMapOfNone) {
  const BlockMap none{empty({0, 2, 2}, DType::i32)};
  EXPECT_EQ(count_seen_blocks(0, 128, 128, {.block_map = none}).shape(), (Shape{0, 2}));
  const Tensor x = zeros({0, 128, 2, 4});
  EXPECT_EQ(scaled_dot_product_attention(x, x, x, {.heads_inner = true, .block_map = none}).shape(),
            x.shape());
}

TEST_F(SeenBlocksTest, OperandsAreChecked) {
  EXPECT_THROW((void)count_seen_blocks(1, 8, 8, {.mask = AttentionMask::document()}), ValueError);
  EXPECT_THROW((void)count_seen_blocks(1, 8, 8, {.query_positions = zeros({9}, DType::i64)}),
               ShapeError);
  const BlockMap map{zeros({1, 1, 1}, DType::i32)};
  EXPECT_THROW((void)select_block_map(map, zeros({4}), zeros({4}, DType::i64)), DTypeError);
  EXPECT_THROW((void)select_block_map(map, zeros({1, 1, 1}, DType::i64), zeros({4}, DType::i64)),
               ShapeError);
  EXPECT_THROW((void)select_block_map(map, full({4}, 64, DType::i64), zeros({4}, DType::i64)),
               IndexError);
}

TEST_F(SeenBlocksTest, OperandsOfASelectionSayWhatDoesNotFit) {
  const Tensor places = zeros({4}, DType::i64);
  const auto error_of = [](const Tensor& blocks, const Tensor& queries, const Tensor& keys) {
    return test::error_of([&] { (void)select_block_map({blocks}, queries, keys); });
  };
  EXPECT_EQ(error_of(zeros({1, 1}, DType::i32), places, places),
            "[block_map] blocks must be (B or 1, T / 64, S / 64) i32 on the CPU: given i32[1, 1]");
  EXPECT_EQ(error_of(zeros({1, 1, 1}, DType::i32), empty({4}, DType::i64, kMeta), places),
            "[block_map] queries must lie on the CPU: given i64[4]@meta");
  EXPECT_EQ(error_of(zeros({2, 1, 1}, DType::i32), places, zeros({3, 4}, DType::i64)),
            "[block_map] places i64[3, 4] do not fit the 2 batches of i32[2, 1, 1]");
}

TEST_F(SeenBlocksTest, ASelectedMapIsThatOfThePredicate) {
  for (int again = 0; again < 60; ++again) {
    SCOPED_TRACE(seed_);
    const auto n = static_cast<int64_t>(random_() % 300), m = static_cast<int64_t>(random_() % 300);
    const int64_t rows = again % 3 == 0 ? 2 : 1;
    const AttentionPredicate sees = [](int64_t b, int64_t q, int64_t k) {
      return k / 64 != 1 && (k < 64 || (q * 7 + k * 3 + b) % 5 < 3);
    };
    const BlockMap whole = make_block_map({.batches = rows, .queries = n, .keys = m}, sees);
    const Tensor queries = some(n, rows, again % 2 == 0), keys = some(m, rows, again % 4 < 2);
    const BlockMap got = select_block_map(whole, queries, keys),
                   want = make_block_map({.batches = rows,
                                          .queries = queries.size(-1),
                                          .keys = keys.size(-1),
                                          .query_positions = queries,
                                          .key_positions = keys},
                                         sees);
    ASSERT_EQ(got.blocks.shape(), want.blocks.shape());
    const auto bits_of = [](const BlockMap& map, int32_t value) {
      const auto* first = map.bits.data<int64_t>() + (value - BlockMap::kBits) * kAttentionBlock;
      return std::vector<int64_t>(first, first + kAttentionBlock);
    };
    for (int64_t i = 0; i < got.blocks.numel(); ++i) {
      const int32_t mine = got.blocks.data<int32_t>()[i], other = want.blocks.data<int32_t>()[i];
      ASSERT_EQ(std::min(mine, BlockMap::kBits), std::min(other, BlockMap::kBits));
      if (mine < BlockMap::kBits) continue;
      ASSERT_EQ(bits_of(got, mine), bits_of(want, other));
    }
  }
}

TEST_F(SeenBlocksTest, BlocksOfTheMaskMoveAsWholesOnly) {
  const Tensor blocks = empty({1, 1, 2}, DType::i32);
  blocks.data<int32_t>()[0] = BlockMap::kPartial;
  blocks.data<int32_t>()[1] = BlockMap::kFull;
  std::vector<int64_t> keys(128);
  std::iota(keys.begin(), keys.end(), int64_t{0});
  std::ranges::rotate(keys, keys.begin() + 64);
  const Tensor row = from_span(std::vector<int64_t>{0});
  const BlockMap moved = select_block_map({blocks}, row, from_span(keys));
  EXPECT_EQ(moved.blocks.data<int32_t>()[0], BlockMap::kFull);
  EXPECT_EQ(moved.blocks.data<int32_t>()[1], BlockMap::kPartial);
  std::ranges::rotate(keys, keys.begin() + 10);
  EXPECT_THROW((void)select_block_map({blocks}, row, from_span(keys)), ValueError);
}

}  // namespace
}  // namespace tessera
