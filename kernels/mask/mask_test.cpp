// SPDX-License-Identifier: Apache-2.0
// Masks as values, and attention with every mask against the plain formula in f64: positions and
// documents in any order, cut sequences, and block maps.
#include "tessera/autograd/autograd.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/index_select/index_select.h"
#include "tessera/kernels/mask/seen_keys_impl.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace tessera {
namespace {

using Mask = AttentionMask;
constexpr Mask kCausal = Mask::causal(), kDocument = Mask::document();

std::string text_of(const Mask& mask) {
  std::ostringstream out;
  out << mask;
  return out.str();
}

TEST(AttentionMask, IsAValue) {
  constexpr Mask window = kCausal & Mask::window(4);
  EXPECT_EQ(window, kCausal & Mask::window(4));
  EXPECT_NE(window, kCausal & Mask::window(5));
  EXPECT_NE(window, kCausal | Mask::window(4));
  EXPECT_NE(kCausal, Mask());
  EXPECT_EQ(Mask() & kCausal, kCausal);
  EXPECT_EQ(Mask() | kCausal, Mask());
  EXPECT_TRUE(window.has(Mask::Kind::window));
  EXPECT_FALSE(window.has(Mask::Kind::document));
  EXPECT_EQ(text_of(Mask()), "all");
  EXPECT_EQ(text_of(window & kDocument), "causal & window(4) & document");
  EXPECT_EQ(text_of((kCausal | Mask::prefix(3)) & kDocument), "(causal | prefix(3)) & document");
  EXPECT_EQ(text_of(kCausal | (Mask::prefix(3) & Mask::chunk(8))),
            "causal | (prefix(3) & chunk(8))");
}

// Numbers of a case, the same on every run.
class Numbers {
 public:
  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }
  std::vector<int64_t> shuffled(int64_t n) {
    std::vector<int64_t> all(static_cast<size_t>(n));
    std::iota(all.begin(), all.end(), int64_t{0});
    std::ranges::shuffle(all, random_);
    return all;
  }

 private:
  std::mt19937_64 random_{11};
};

Tensor tensor_of(const std::vector<int64_t>& values, Shape shape) {
  return from_values(std::vector<double>(values.begin(), values.end()), shape, DType::i64);
}

struct Sizes {
  int64_t b, h, hkv, t, s, d, dv;
};
struct Operands {
  Tensor q, k, v, dy;
};
Operands operands(const Sizes& z, DType dtype) {
  const auto made = [&](int64_t heads, int64_t n, int64_t d, uint64_t i) {
    return cast(cast(normal({z.b, heads, n, d}, {5, i}), DType::bf16), dtype);  // the same in all
  };
  return {made(z.h, z.t, z.d, 1), made(z.hkv, z.s, z.d, 2), made(z.hkv, z.s, z.dv, 3),
          made(z.h, z.t, z.dv, 4)};
}
// o, lse and the gradients of q, k, v.
std::vector<Tensor> attend(const Operands& x, const AttentionOptions& options) {
  Tensor in[] = {x.q.detach(), x.k.detach(), x.v.detach()};
  for (Tensor& t : in) t.set_requires_grad();
  const auto [o, lse] = scaled_dot_product_attention_with_lse(in[0], in[1], in[2], options);
  backward(o, {.gradient = x.dy});
  return {o, lse, in[0].grad(), in[1].grad(), in[2].grad()};
}

// sees(batch, query, key), by their indices.
using Sees = std::function<bool(int64_t, int64_t, int64_t)>;

// The formula, row by row. The same five results.
std::vector<std::vector<double>> plain(const Operands& x, const Sizes& z, const Sees& sees) {
  const auto q = x.q.values(), k = x.k.values(), v = x.v.values(), dy = x.dy.values();
  std::vector<double> o(dy.size()), lse, dq(q.size()), dk(k.size()), dv(v.size());
  const double scale = 1 / std::sqrt(static_cast<double>(z.d));
  for (int64_t b = 0; b < z.b; ++b) {
    for (int64_t h = 0; h < z.h; ++h) {
      const int64_t kv = b * z.hkv + h / (z.h / z.hkv);
      for (int64_t i = 0; i < z.t; ++i) {
        const auto row = static_cast<size_t>((b * z.h + h) * z.t + i);
        const size_t at = row * static_cast<size_t>(z.d), out = row * static_cast<size_t>(z.dv);
        const auto key = [&](int64_t j, int64_t width) {
          return static_cast<size_t>((kv * z.s + j) * width);
        };
        std::vector<double> p(static_cast<size_t>(z.s), 0.0);
        double sum = 0, delta = 0;
        for (int64_t j = 0; j < z.s; ++j) {
          if (!sees(b, i, j)) continue;
          double score = 0;
          for (size_t c = 0; c < static_cast<size_t>(z.d); ++c)
            score += q[at + c] * k[key(j, z.d) + c];
          sum += p[static_cast<size_t>(j)] = std::exp(score * scale);
        }
        lse.push_back(std::log(sum));
        if (sum == 0) continue;
        for (int64_t j = 0; j < z.s; ++j) {
          double& weight = p[static_cast<size_t>(j)];
          weight /= sum;
          for (size_t c = 0; c < static_cast<size_t>(z.dv); ++c) {
            o[out + c] += weight * v[key(j, z.dv) + c];
            dv[key(j, z.dv) + c] += weight * dy[out + c];
          }
        }
        for (size_t c = 0; c < static_cast<size_t>(z.dv); ++c) delta += dy[out + c] * o[out + c];
        for (int64_t j = 0; j < z.s; ++j) {
          double ds = -delta;
          for (size_t c = 0; c < static_cast<size_t>(z.dv); ++c)
            ds += dy[out + c] * v[key(j, z.dv) + c];
          ds *= p[static_cast<size_t>(j)] * scale;
          for (size_t c = 0; c < static_cast<size_t>(z.d); ++c) {
            dq[at + c] += ds * k[key(j, z.d) + c];
            dk[key(j, z.d) + c] += ds * q[at + c];
          }
        }
      }
    }
  }
  return {o, lse, dq, dk, dv};
}

void expect_close(const std::vector<Tensor>& got, const std::vector<std::vector<double>>& want,
                  double tolerance, const std::string& what) {
  for (size_t i = 0; i < want.size(); ++i) {
    const auto a = got[i].values();
    ASSERT_EQ(a.size(), want[i].size());
    double gap = 0, size = 1;  // a row of one key has no gradient but rounding
    for (size_t j = 0; j < a.size(); ++j) {
      if (a[j] == want[i][j]) continue;  // -inf, where a row sees nothing
      gap += (a[j] - want[i][j]) * (a[j] - want[i][j]);
      size += want[i][j] * want[i][j];
    }
    EXPECT_LE(std::sqrt(gap / size), tolerance) << what << ", result " << i;
  }
}

// What the conditions of a mask say in words, for one pair.
bool says(const Mask& mask, int64_t q, int64_t k, int64_t q_doc, int64_t k_doc) {
  return mask.evaluate(true, [&](Mask::Kind kind, int64_t n) {
    const auto chunk = [n](int64_t p) {
      return std::floor(static_cast<double>(p) / static_cast<double>(n));
    };
    switch (kind) {
      case Mask::Kind::causal: return k <= q;
      case Mask::Kind::document: return q_doc == k_doc;
      case Mask::Kind::window: return std::abs(q - k) < n;
      case Mask::Kind::chunk: return chunk(q) == chunk(k);
      default: return k < n;
    }
  });
}

std::vector<Mask> masks() {
  const Mask all[] = {kCausal, kDocument, Mask::window(40), Mask::chunk(50), Mask::prefix(30)};
  std::vector<Mask> made{Mask()};
  for (const Mask& a : all) {
    made.push_back(a);
    for (const Mask& b : all) {
      if (a == b) break;
      made.push_back(a & b);
      made.push_back(a | b);
    }
  }
  made.push_back((kCausal | Mask::prefix(30)) & kDocument);
  made.push_back(kCausal & (Mask::window(9) | Mask::prefix(4)) & (kDocument | Mask::chunk(20)));
  made.push_back(kCausal & Mask::window(0x7fffffff));
  made.push_back(Mask::window(2) & Mask::prefix(3));  // most queries see nothing
  return made;
}

// Positions and documents in order, in any order, and with gaps; one for all batches, and each.
TEST(AttentionMask, EveryMaskInEveryOrderIsThePlainFormula) {
  const Session session;
  Numbers numbers;
  const Sizes sizes[] = {{2, 4, 2, 70, 75, 6, 4}, {1, 2, 1, 33, 130, 5, 5}, {2, 2, 2, 1, 70, 4, 3}};
  for (const Mask& mask : masks()) {
    for (const Sizes& z : sizes) {
      for (const int order : {0, 1, 2}) {
        AttentionOptions options{.mask = mask};
        const int64_t rows = order == 1 ? 1 : z.b;
        // Of queries and of keys, (rows, n).
        std::vector<int64_t> places[2], documents[2];
        for (const int side : {0, 1}) {
          const int64_t n = side == 0 ? z.t : z.s;
          for (int64_t b = 0; b < rows; ++b) {
            const auto shuffled = numbers.shuffled(n + 9);
            for (int64_t i = 0; i < n; ++i) {
              const int64_t start = side == 0 ? 5 : 2;
              places[side].push_back(order == 0 ? start + i : shuffled[static_cast<size_t>(i)] - 4);
              documents[side].push_back(order == 0 ? i / 29 * 2 + side * (i / 58)
                                                   : numbers.below(3));
            }
          }
          const Shape shape = order == 1 ? Shape{n} : Shape{z.b, n};
          const Tensor positions = tensor_of(places[side], shape),
                       ids = tensor_of(documents[side], shape);
          if (order == 0 && side == 0) options.query_start = 5;
          else if (order == 0) options.key_start = 2;
          else (side == 0 ? options.query_positions : options.key_positions) = positions;
          if (mask.has(Mask::Kind::document))
            (side == 0 ? options.query_documents : options.key_documents) = ids;
        }
        const auto sees = [&](int64_t b, int64_t i, int64_t j) {
          const auto q = static_cast<size_t>((rows > 1 ? b : 0) * z.t + i),
                     k = static_cast<size_t>((rows > 1 ? b : 0) * z.s + j);
          return says(mask, places[0][q], places[1][k], documents[0][q], documents[1][k]);
        };
        const std::string what =
            text_of(mask) + ", order " + std::to_string(order) + ", T " + std::to_string(z.t);
        const Operands x = operands(z, DType::f64);
        const auto want = plain(x, z, sees);
        expect_close(attend(x, options), want, 1e-12, what);
        expect_close(attend(operands(z, DType::f32), options), want, 2e-6, what + " f32");
        expect_close(attend(operands(z, DType::bf16), options), want, 2e-2, what + " bf16");
        // The same by a block map of the mask as a predicate, of indices.
        options = {.mask = kCausal};  // has no say: no block is left to it
        options.block_map = make_block_map({.batches = z.b, .queries = z.t, .keys = z.s}, sees);
        expect_close(attend(x, options), want, 1e-12, what + " by a map");
      }
    }
  }
}

// The largest sizes are those of a mask that hides nothing.
TEST(AttentionMask, TheLargestSizesHideNothing) {
  const Session session;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr Mask kWindow = Mask::window(kMost);
  const Operands x = operands({1, 2, 1, 70, 75, 6, 4}, DType::f32);
  const auto expect_same = [&](const Mask& mask, const Mask& want, int64_t query_start) {
    const auto a = attend(x, {.mask = mask, .query_start = query_start}),
               b = attend(x, {.mask = want, .query_start = query_start});
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].values(), b[i].values()) << text_of(mask);
  };
  for (const int64_t start : {0, 5}) {
    for (const Mask& mask : {kWindow, Mask::chunk(kMost), Mask::prefix(kMost)}) {
      expect_same(mask, Mask(), start);
      expect_same(mask & kCausal, kCausal, start);
    }
  }
  EXPECT_EQ(kWindow, Mask::window(Mask::kLongest));
}

TEST(AttentionMask, NoKeysAreOneRange) {
  const auto seen = [](const Mask& mask, int64_t position) {
    const auto r = op::attention::range_seen(mask, position, 20, 0, {7, 6});
    return std::pair{r.range.first, r.range.last};
  };
  const std::pair<int64_t, int64_t> none{0, -1};
  EXPECT_EQ(seen(Mask::window(2) & Mask::prefix(3), 10), none);
  EXPECT_EQ(seen(kDocument, 10), none);
  EXPECT_EQ(seen(kCausal, -5), none);
  EXPECT_EQ(seen(kCausal & Mask::window(3), 10), (std::pair<int64_t, int64_t>{8, 10}));
}

// Keys in order are ranges, so queries may come in any order at the same bits.
TEST(AttentionMask, QueriesInAnyOrderGiveTheirRows) {
  const Session session;
  Numbers numbers;
  const int64_t n = 150;
  const Tensor q = normal({1, 2, n, 8}, {1, 1}), k = normal({1, 2, n, 8}, {1, 2}),
               v = normal({1, 2, n, 8}, {1, 3});
  const Tensor order = tensor_of(numbers.shuffled(n), {n});
  for (const Mask& mask : {kCausal, kCausal & Mask::window(20), kCausal | Mask::prefix(70)}) {
    const auto want = scaled_dot_product_attention(q, k, v, {.mask = mask}).values();
    const auto got = scaled_dot_product_attention(index_select(q, 2, order), k, v,
                                                  {.mask = mask, .query_positions = order});
    const auto expected =
        index_select(scaled_dot_product_attention(q, k, v, {.mask = mask}), 2, order);
    const auto a = got.values(), b = expected.values();
    ASSERT_EQ(a.size(), want.size());
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-5) << text_of(mask);
  }
}

// A sequence cut as a head-tail balance cuts it needs its part of the operands and nothing else.
TEST(AttentionMask, PartsOfASequenceAreTheWhole) {
  const Session session;
  const int64_t n = 256;
  const Sizes z{1, 2, 1, n, n, 8, 4};
  const Operands x = operands(z, DType::f64);
  std::vector<double> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<double>(i / 90));
  const Tensor documents = from_values(ids, {n}, DType::i64);
  const Mask mask = kCausal & kDocument;
  const auto whole =
      attend(x, {.mask = mask, .query_documents = documents, .key_documents = documents});
  std::vector<int64_t> balanced;  // chunks 0 and 3 of four, then 1 and 2
  for (const int64_t chunk : {0, 3, 1, 2}) {
    for (int64_t i = 0; i < 64; ++i) balanced.push_back(chunk * 64 + i);
  }
  const Tensor order = tensor_of(balanced, {n});
  const auto moved = [&](const Tensor& t, int dim) { return index_select(t, dim, order); };
  const Operands y{moved(x.q, 2), moved(x.k, 2), moved(x.v, 2), moved(x.dy, 2)};
  Tensor dk = zeros(x.k.shape(), DType::f64);
  for (const int64_t part : {0, 1}) {
    const Range mine{part * 128, part * 128 + 128};
    const Operands piece{slice(y.q, 2, mine), y.k, y.v, slice(y.dy, 2, mine)};
    const auto got = attend(piece, {.mask = mask,
                                    .query_positions = slice(order, 0, mine),
                                    .key_positions = order,
                                    .query_documents = slice(moved(documents, 0), 0, mine),
                                    .key_documents = moved(documents, 0)});
    const auto close = [](const Tensor& a, const Tensor& b) {
      const auto u = a.values(), w = b.values();
      ASSERT_EQ(u.size(), w.size());
      for (size_t i = 0; i < u.size(); ++i) ASSERT_NEAR(u[i], w[i], 1e-12);
    };
    close(got[0], slice(moved(whole[0], 2), 2, mine));
    close(got[1], slice(moved(whole[1], 2), 2, mine));
    close(got[2], slice(moved(whole[2], 2), 2, mine));
    dk = dk + got[3];
    if (part == 1) close(dk, moved(whole[3], 2));
  }
}

TEST(BlockMap, HoldsBitsOfBlocksThatAreSeenInPart) {
  const Session session;
  const BlockMap causal = make_block_map({.queries = 130, .keys = 130},
                                         [](int64_t, int64_t q, int64_t k) { return k <= q; });
  EXPECT_EQ(causal.blocks.shape(), (Shape{1, 3, 3}));
  EXPECT_EQ(causal.blocks.values(), (std::vector<double>{3, 0, 0, 2, 4, 0, 2, 2, 5}));
  EXPECT_EQ(causal.bits.shape(), (Shape{3, 64}));
  const auto* words = causal.bits.data<int64_t>();
  EXPECT_EQ(words[0], 1);
  EXPECT_EQ(words[63], -1);
  const BlockMap full =
      make_block_map({.batches = 2, .queries = 3, .keys = 70, .key_start = 5},
                     [](int64_t b, int64_t, int64_t k) { return b == 0 || k < 5; });
  EXPECT_EQ(full.blocks.values(), (std::vector<double>{2, 2, 0, 0}));
  EXPECT_FALSE(full.bits.defined());
  EXPECT_THROW(
      (void)make_block_map({.queries = 3, .keys = 3, .key_positions = zeros({2}, DType::i64)},
                           [](int64_t, int64_t, int64_t) { return true; }),
      ShapeError);
  const auto error_of = [](const Tensor& positions) {
    return test::error_of([&] {
      (void)make_block_map({.queries = 3, .keys = 3, .query_positions = positions},
                           [](int64_t, int64_t, int64_t) { return true; });
    });
  };
  EXPECT_EQ(error_of(zeros({3}, DType::i32)),
            "[block_map] query_positions must be i64: given i32[3]; cast them");
  EXPECT_EQ(error_of(empty({3}, DType::i64, kMeta)),
            "[block_map] query_positions must lie on the CPU: given i64[3]@meta");
}

// Each row of blocks is one thread's, and numbers its bits.
TEST(BlockMap, OfAnyThreadsIsWhatThePredicateSays) {
  const Session session;
  constexpr int64_t kBatches = 2, kQueries = 333, kKeys = 200;
  Numbers numbers;
  std::vector<char> said(static_cast<size_t>(kBatches * kQueries * kKeys));
  for (char& pair : said) pair = numbers.below(3) == 0 ? 1 : 0;
  const auto sees = [&](int64_t b, int64_t q, int64_t k) {
    return k / 64 != 1 && (k < 64 || said[static_cast<size_t>((b * kQueries + q) * kKeys + k)]);
  };
  for (const int threads : {1, 2, 3, 9}) {
    Context::current().options.threads = threads;
    const BlockMap map =
        make_block_map({.batches = kBatches, .queries = kQueries, .keys = kKeys}, sees);
    const auto* block = map.blocks.data<int32_t>();
    const auto* words = map.bits.data<int64_t>();
    int64_t next = BlockMap::kBits;
    for (int64_t b = 0; b < kBatches; ++b) {
      for (int64_t q = 0; q < kQueries; q += kAttentionBlock) {
        EXPECT_EQ(block[0], BlockMap::kFull);
        EXPECT_EQ(block[1], BlockMap::kEmpty);
        EXPECT_EQ(block[2], next++);
        EXPECT_EQ(block[3], next++);
        for (int64_t i = q; i < std::min(q + kAttentionBlock, kQueries); ++i) {
          for (int64_t k = 128; k < kKeys; ++k) {
            const int64_t bits = block[k / 64] - BlockMap::kBits;
            ASSERT_EQ(words[bits * 64 + i - q] >> k % 64 & 1, sees(b, i, k) ? 1 : 0);
          }
        }
        block += 4;
      }
    }
    EXPECT_THROW((void)make_block_map({.queries = kQueries, .keys = kKeys},
                                      [](int64_t, int64_t q, int64_t) -> bool {
                                        if (q > 70) throw std::out_of_range("no such query");
                                        return true;
                                      }),
                 std::out_of_range);
  }
}

}  // namespace
}  // namespace tessera
