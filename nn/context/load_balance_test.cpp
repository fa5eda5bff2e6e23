// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/context/load_balance.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/layout.h"
#include "tessera/kernels/attention/seen_blocks.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/index_select/index_select.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/trials.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace tessera::nn {
namespace {

using Sizes = std::vector<int64_t>;
using trial::error_of;

Sizes chunks(int64_t tokens, int parts) {
  Sizes sizes;
  for (int i = 0; i < parts; ++i) sizes.push_back(chunk({0, tokens, tokens}, parts, i).size);
  return sizes;
}
Sizes values(const Tensor& x) {
  const auto* first = x.data<int64_t>();
  return {first, first + x.numel()};
}
// (T) i64: documents of up to `most` tokens.
Tensor documents(std::mt19937& random, int64_t tokens, int64_t most) {
  Sizes ids;
  for (int64_t id = 0; std::ssize(ids) < tokens; ++id)
    ids.insert(ids.end(), 1 + random() % static_cast<unsigned>(most), id);
  ids.resize(static_cast<size_t>(tokens));
  return from_span(ids);
}

class LoadBalanceTest : public testing::Test {
 protected:
  Session session_;
};

TEST_F(LoadBalanceTest, HeadTailIsTorchsWhereItDivides) {
  const auto order = [](int64_t tokens, int parts) {
    return values(balanced_order({LoadBalancer::head_tail}, chunks(tokens, parts)));
  };
  EXPECT_EQ(order(8, 2), (Sizes{0, 1, 6, 7, 2, 3, 4, 5}));
  EXPECT_EQ(order(12, 3), (Sizes{0, 1, 10, 11, 2, 3, 8, 9, 4, 5, 6, 7}));
  EXPECT_EQ(order(5, 2), (Sizes{0, 1, 4, 2, 3}));
  EXPECT_EQ(order(1, 3), (Sizes{0}));
  EXPECT_EQ(order(0, 3), Sizes{});
  EXPECT_FALSE(balanced_order({LoadBalancer::none}, chunks(8, 2)).defined());
}

TEST_F(LoadBalanceTest, EachDocumentIsSharedByItsHeadAndTail) {
  const Tensor ids = from_span(Sizes{3, 3, 3, 3, 9, 9, 9, 9, 9, 9, 9, 9});
  EXPECT_EQ(values(balanced_order({LoadBalancer::document_head_tail, ids}, chunks(12, 2))),
            (Sizes{0, 3, 4, 5, 10, 11, 1, 2, 6, 7, 8, 9}));
}

TEST_F(LoadBalanceTest, BlocksAreDealtToAndFroByFallingWork) {
  const Tensor work = from_span(Sizes{1, 2, 3, 4}, {1, 4});
  const Sizes order = values(balanced_order({LoadBalancer::round_robin, {}, work}, chunks(256, 2)));
  // Blocks 3, then 2 and 1, then 0.
  EXPECT_EQ(order[0], 0);
  EXPECT_EQ(order[64], 192);
  EXPECT_EQ(order[128], 64);
  EXPECT_EQ(order[192], 128);
}

// Whatever the sizes of parts are: a permutation, in order inside each part.
TEST_F(LoadBalanceTest, AnySizesArePermuted) {
  std::mt19937 random(std::random_device{}());
  for (int again = 0; again < 300; ++again) {
    const auto tokens = static_cast<int64_t>(random() % 300);
    Sizes parts = chunks(tokens, 1 + static_cast<int>(random() % 6));
    if (again % 2 == 0) {  // those of nested axes
      Sizes nested;
      for (const int64_t part : parts) {
        for (const int64_t size : chunks(part, 2)) nested.push_back(size);
      }
      parts = nested;
    }
    const Tensor ids = documents(random, tokens, 1 + random() % 100);
    const Tensor work = count_seen_blocks(1, tokens, tokens,
                                          {.mask = AttentionMask::causal(), .heads_inner = true});
    for (const auto balancer :
         {LoadBalancer::head_tail, LoadBalancer::document_head_tail, LoadBalancer::round_robin}) {
      const Sizes order = values(balanced_order({balancer, ids, work}, parts));
      Sizes sorted = order, all(static_cast<size_t>(tokens));
      std::ranges::sort(sorted);
      std::iota(all.begin(), all.end(), int64_t{0});
      ASSERT_EQ(sorted, all) << balancer;
      auto at = order.begin();
      for (const int64_t size : parts) {
        ASSERT_TRUE(std::is_sorted(at, at + size)) << balancer;
        at += size;
      }
    }
  }
}

// The most blocks of keys that a part reads, as a multiple of the mean.
double imbalance(const Tensor& order, const Sizes& parts, const AttentionOptions& whole) {
  const int64_t tokens = order.size(-1);
  int64_t begin = 0;
  double most = 0, all = 0;
  for (const int64_t size : parts) {
    const Tensor mine = contiguous(slice(order, -1, {begin, begin + size}));
    AttentionOptions o = whole;
    o.query_positions = mine;
    if (whole.query_documents.defined())
      o.query_documents = index_select(whole.query_documents, 0, mine);
    const Sizes blocks = values(count_seen_blocks(1, size, tokens, o));
    const double work = std::accumulate(blocks.begin(), blocks.end(), 0.0);
    most = std::max(most, work);
    all += work;
    begin += size;
  }
  return most * static_cast<double>(parts.size()) / all;
}

TEST_F(LoadBalanceTest, WorkOfHeadTailIsEqualUnderACausalMask) {
  for (const int64_t tokens : {4096, 8192}) {
    for (const int ranks : {2, 3, 4, 8}) {
      const Sizes parts = chunks(tokens, ranks);
      const AttentionOptions causal{.mask = AttentionMask::causal(), .heads_inner = true};
      const double off = imbalance(balanced_order({LoadBalancer::head_tail}, parts), parts, causal);
      std::cout << tokens << " tokens, " << ranks << " ranks: " << off << '\n';
      EXPECT_LE(off, 1.05) << tokens << " tokens, " << ranks << " ranks";
    }
  }
}

TEST_F(LoadBalanceTest, WorkOfRoundRobinIsEqualOnRandomDocuments) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  double worst = 0;
  for (int again = 0; again < 40; ++again) {
    const int64_t tokens = 16384;
    const Tensor ids = documents(random, tokens, 200 + random() % 6000);
    const AttentionOptions o{.mask = AttentionMask::causal() & AttentionMask::document(),
                             .heads_inner = true,
                             .query_documents = ids,
                             .key_documents = ids};
    const Tensor work = count_seen_blocks(1, tokens, tokens, o);
    for (const int ranks : {2, 4, 8}) {
      const Sizes parts = chunks(tokens, ranks);
      const double off =
          imbalance(balanced_order({LoadBalancer::round_robin, {}, work}, parts), parts, o);
      worst = std::max(worst, off);
      EXPECT_LE(off, 1.1) << ranks << " ranks, seed " << seed;
    }
  }
  std::cout << "worst: " << worst << '\n';
}

TEST_F(LoadBalanceTest, WhatIsMissingIsNamed) {
  TESSERA_EXPECT_HOLDS(error_of<ValueError>([] {
                         (void)balanced_order({LoadBalancer::document_head_tail}, chunks(8, 2));
                       }),
                       "documents");
  TESSERA_EXPECT_HOLDS(
      error_of<ValueError>([] { (void)balanced_order({LoadBalancer::round_robin}, chunks(8, 2)); }),
      "count_seen_blocks");
  TESSERA_EXPECT_HOLDS(error_of<ValueError>([] {
                         (void)balanced_order(
                             {LoadBalancer::document_head_tail, zeros({7}, DType::i64)},
                             chunks(8, 2));
                       }),
                       "8 tokens in a row");
  TESSERA_EXPECT_HOLDS(error_of<ValueError>([] {
                         (void)balanced_order(
                             {LoadBalancer::round_robin, {}, zeros({1, 1}, DType::i64)},
                             chunks(65, 2));
                       }),
                       "2 blocks of queries");
}

}  // namespace
}  // namespace tessera::nn
