// SPDX-License-Identifier: Apache-2.0
#include "tessera/autograd/autograd.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/mask/seen_bits_impl.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace tessera::op {
namespace {

constexpr int kRows = 4, kColumns = 16, kQueries = 100, kKeys = 90;

struct Case {
  Tensor query_positions, key_positions, query_documents, key_documents;
};

// Every element of the pieces at random places of a block has the bit that sees() says.
void expect_bits(const AttentionMask& mask, const Case& c, std::mt19937_64& random) {
  const Attention attention{.mask = mask, .query_start = 7, .key_start = 3};
  const Tensor none;
  const TensorList in{
      none, none, none, c.query_positions, c.key_positions, c.query_documents, c.key_documents};
  const MaskView view(attention, MaskOperands(in, Attention::mask_operands), kQueries, kKeys);
  for (const int32_t by : {BlockSeen::kByMask, BlockSeen::kEverything}) {
    for (int turn = 0; turn < 8; ++turn) {
      const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
      const int64_t q = below(2) * kAttentionBlock + below(40), b = below(2),
                    k = below(2) * kAttentionBlock + below(40);
      const BlockSeen seen{by};
      const auto ahead = [](int64_t from) { return [from](int i) { return from + 3 * i / 2; }; };
      const auto of_queries = seen_bits<kRows, kColumns, false>(view, seen, b, ahead(q), ahead(k));
      const auto of_keys = seen_bits<kRows, kColumns, true>(view, seen, b, ahead(k), ahead(q));
      for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < kColumns; ++i) {
          ASSERT_EQ(of_queries.of[r] >> i & 1, view.sees(seen, b, ahead(q)(r), ahead(k)(i)) ? 1 : 0)
              << mask << ": query " << ahead(q)(r) << ", key " << ahead(k)(i);
          ASSERT_EQ(of_keys.of[r] >> i & 1, view.sees(seen, b, ahead(q)(i), ahead(k)(r)) ? 1 : 0)
              << mask << ": query " << ahead(q)(i) << ", key " << ahead(k)(r);
        }
      }
    }
  }
}

TEST(SeenBits, AreWhatTheMaskSees) {
  const Session session;
  std::mt19937_64 random(5);
  const auto mask = AttentionMask::causal();
  const auto document = AttentionMask::document();
  const std::vector<AttentionMask> masks{
      {},
      mask,
      document,
      mask & document,
      mask & AttentionMask::window(20),
      AttentionMask::window(9),
      AttentionMask::chunk(24) & mask,
      mask | AttentionMask::prefix(30),
      (mask | AttentionMask::prefix(12)) & (document | AttentionMask::window(40))};
  const auto numbers = [&](int64_t n, int64_t least, int64_t most) {
    std::vector<double> values(static_cast<size_t>(2 * n));
    for (double& x : values)
      x = static_cast<double>(least + static_cast<int64_t>(random() % (most - least)));
    return from_values(values, {2, n}, DType::i64);
  };
  for (const AttentionMask& m : masks) {
    const Case documents{{}, {}, numbers(kQueries, 0, 3), numbers(kKeys, 0, 3)};
    const Case shuffled{numbers(kQueries, -50, 200), numbers(kKeys, -50, 200),
                        documents.query_documents, documents.key_documents};
    if (!m.has(AttentionMask::Kind::document)) expect_bits(m, {}, random);
    expect_bits(m, documents, random);
    expect_bits(m, shuffled, random);
  }
}

// What a query sees ends where it says, at negative positions and at the largest sizes too.
TEST(SeenNumbers, EndWhereTheConditionDoes) {
  using Kind = AttentionMask::Kind;
  const auto sees = [](Kind kind, int64_t n, int64_t q, int64_t k) {
    return seen_numbers(kind, n, q).has(k);
  };
  EXPECT_TRUE(sees(Kind::causal, 0, 5, 5));
  EXPECT_FALSE(sees(Kind::causal, 0, 5, 6));
  EXPECT_TRUE(sees(Kind::causal, 0, -5, -(int64_t{1} << 48)));
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max(),
                    kFirst = std::numeric_limits<int64_t>::min();
  EXPECT_TRUE(sees(Kind::causal, 0, kLast, kLast));
  EXPECT_TRUE(sees(Kind::causal, 0, kLast, kFirst));
  EXPECT_TRUE(sees(Kind::causal, 0, kFirst, kFirst));
  EXPECT_FALSE(sees(Kind::causal, 0, kFirst, kFirst + 1));
  EXPECT_TRUE(sees(Kind::window, 3, 5, 3));
  EXPECT_TRUE(sees(Kind::window, 3, 5, 7));
  EXPECT_FALSE(sees(Kind::window, 3, 5, 2));
  EXPECT_FALSE(sees(Kind::window, 3, 5, 8));
  EXPECT_TRUE(sees(Kind::window, AttentionMask::kLongest, 5, 1 << 30));
  EXPECT_TRUE(sees(Kind::chunk, 4, -1, -4));
  EXPECT_FALSE(sees(Kind::chunk, 4, -1, 0));
  EXPECT_TRUE(sees(Kind::prefix, 4, -1, 3));
  EXPECT_FALSE(sees(Kind::prefix, 4, -1, 4));
  EXPECT_TRUE(sees(Kind::document, 0, -1, -1));
  EXPECT_FALSE(sees(Kind::document, 0, -1, 0));
}

}  // namespace
}  // namespace tessera::op
