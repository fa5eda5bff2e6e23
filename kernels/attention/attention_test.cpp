// SPDX-License-Identifier: Apache-2.0
// Attention against the plain formula at sizes beyond one block, what rows that see nothing give,
// packed documents against one document at a time, and one query against a cache.
#include "tessera/kernels/attention/attention.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/softmax/softmax.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

constexpr AttentionMask kCausal = AttentionMask::causal();

TEST(Attention, AgreesWithThePlainFormulaAcrossBlocks) {
  const Session session;
  const int64_t t = 150, s = 201, d = 20;
  const Tensor q = normal({1, 2, t, d}, {1, 1}), k = normal({1, 1, s, d}, {1, 2}),
               v = normal({1, 1, s, d}, {1, 3});
  const auto [o, lse] =
      scaled_dot_product_attention_with_lse(q, k, v, {.mask = kCausal, .query_start = s - t});
  const auto qv = q.values(), kv = k.values(), vv = v.values(), ov = o.values(), lv = lse.values();
  const auto at = [d](const std::vector<double>& x, int64_t row, int64_t i) {
    return x[static_cast<size_t>(row * d + i)];
  };
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t i = 0; i < t; ++i) {
      std::vector<double> out(static_cast<size_t>(d));
      double sum = 0;
      for (int64_t j = 0; j <= i + s - t; ++j) {
        double score = 0;
        for (int64_t c = 0; c < d; ++c) score += at(qv, h * t + i, c) * at(kv, j, c);
        const double p = std::exp(score / std::sqrt(static_cast<double>(d)));
        sum += p;
        for (int64_t c = 0; c < d; ++c) out[static_cast<size_t>(c)] += p * at(vv, j, c);
      }
      EXPECT_NEAR(lv[static_cast<size_t>(h * t + i)], std::log(sum), 1e-5);
      for (int64_t c = 0; c < d; ++c)
        EXPECT_NEAR(at(ov, h * t + i, c), out[static_cast<size_t>(c)] / sum, 1e-5);
    }
  }
}

// One key has nearly all the weight: the gradients are small differences, which o rounded to bf16
// would drown.
TEST(Attention, GradientsOfASaturatedSoftmaxKeepTheirDigitsInBf16) {
  const Session session;
  for (const int64_t t : {1, 70, 150}) {
    const auto make = [&](uint64_t key) {
      return normal({1, 2, t, 64}, {3, key}, 0, 1, DType::bf16);
    };
    const Tensor k = sign(make(1)), q = k * 1.5, v = make(2), dout = make(3);  // a query is its key
    const auto gradients = [&](DType type) {
      std::vector<Tensor> in;
      for (const Tensor& x : {q, k, v}) in.push_back(cast(x, type).detach().set_requires_grad());
      const Tensor o = scaled_dot_product_attention(in[0], in[1], in[2]);
      return grad({o}, in, {.grad_outputs = {cast(dout, type)}});
    };
    const auto got = gradients(DType::bf16), want = gradients(DType::f64);
    for (size_t i = 0; i < 3; ++i) {
      const auto x = got[i].values(), y = want[i].values();
      double off = 0, most = 0;
      for (size_t j = 0; j < y.size(); ++j) {
        off = std::max(off, std::abs(x[j] - y[j]));
        most = std::max(most, std::abs(y[j]));
      }
      EXPECT_LE(off, 0.01 * most) << "input " << i << " of " << t << " tokens";
    }
  }
}

TEST(Attention, LargeScoresStayFinite) {
  const Session session;
  Tensor q = normal({1, 1, 70, 8}, {1, 1}, 0, 100).set_requires_grad(),
         k = normal({1, 1, 70, 8}, {1, 2}, 0, 100);
  const Tensor v = normal({1, 1, 70, 8}, {1, 3});
  const Tensor o = scaled_dot_product_attention(q, k, v, {.mask = kCausal});
  backward(o, {.gradient = ones({1, 1, 70, 8})});
  for (double x : o.values()) EXPECT_TRUE(std::isfinite(x));
  for (double x : q.grad().values()) EXPECT_TRUE(std::isfinite(x));
}

TEST(Attention, ARowThatSeesNothingIsZero) {
  const Session session;
  const Tensor x = normal({1, 1, 3, 4}, {1, 1});
  const auto [o, lse] =
      scaled_dot_product_attention_with_lse(x, x, x, {.mask = kCausal, .query_start = -1});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(o.values()[static_cast<size_t>(i)], 0);
  EXPECT_EQ(lse.values()[0], -INFINITY);
}

// Others of its block see the key that holds the infinity.
TEST(Attention, ARowThatSeesNothingIsZeroBesideAnInfinity) {
  const Session session;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const auto made = [&](uint64_t i) { return cast(normal({1, 2, 70, 8}, {1, i}), dtype); };
    const Tensor q = made(1), k = made(2), v = made(3);
    assign_(slice(v, 2, {60, 61}), full({1, 2, 1, 8}, INFINITY, dtype));
    const auto [o, lse] =
        scaled_dot_product_attention_with_lse(q, k, v, {.mask = kCausal, .query_start = -3});
    for (const double x : slice(o, 2, {0, 3}).values()) EXPECT_EQ(x, 0) << dtype;
    for (const double x : slice(lse, 2, {0, 3}).values()) EXPECT_EQ(x, -INFINITY) << dtype;
  }
}

TEST(Attention, BothOrdersOfDimsAgree) {
  const Session session;
  const Tensor q = normal({2, 9, 4, 8}, {1, 1}), k = normal({2, 9, 2, 8}, {1, 2}),
               v = normal({2, 9, 2, 8}, {1, 3});
  const Tensor inner =
      scaled_dot_product_attention(q, k, v, {.mask = kCausal, .heads_inner = true});
  const Tensor outer = scaled_dot_product_attention(transpose(q, 1, 2), transpose(k, 1, 2),
                                                    transpose(v, 1, 2), {.mask = kCausal});
  EXPECT_EQ(inner.values(), transpose(outer, 1, 2).values());
}

Tensor documents_of(const std::vector<int64_t>& lengths) {
  std::vector<double> ids;
  for (size_t d = 0; d < lengths.size(); ++d)
    ids.insert(ids.end(), static_cast<size_t>(lengths[d]), static_cast<double>(d));
  return from_values(ids, {static_cast<int64_t>(ids.size())}, DType::i64);
}
AttentionOptions in_documents(AttentionOptions o, const Tensor& documents) {
  o.mask = o.mask & AttentionMask::document();
  o.query_documents = o.key_documents = documents;
  return o;
}

template <class E, class F> std::string error_of(F&& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "nothing was thrown";
}

// o, lse and the gradients of q, k, v for the upstream gradient dy.
std::vector<Tensor> attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dy,
                           const AttentionOptions& options) {
  Tensor x[] = {contiguous(q).detach(), contiguous(k).detach(), contiguous(v).detach()};
  for (Tensor& t : x) t.set_requires_grad();
  const auto [o, lse] = scaled_dot_product_attention_with_lse(x[0], x[1], x[2], options);
  backward(o, {.gradient = contiguous(dy)});
  return {o, lse, x[0].grad(), x[1].grad(), x[2].grad()};
}

TEST(Attention, PackedDocumentsGiveTheBitsOfOneDocumentAtATime) {
  const Session session;
  const std::vector<int64_t> documents{3, 70, 1, 64, 17, 130, 15};
  const int64_t length = 300, d = 24;
  const Tensor ids = documents_of(documents);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    for (const bool inner : {false, true}) {
      for (AttentionOptions options :
           {AttentionOptions{.mask = kCausal}, AttentionOptions{},
            AttentionOptions{.mask = kCausal & AttentionMask::window(33)}}) {
        options.heads_inner = inner;
        const int time = inner ? 1 : 2;
        const auto made = [&](int64_t heads, uint64_t i) {
          const Shape shape = inner ? Shape{1, length, heads, d} : Shape{1, heads, length, d};
          return cast(normal(shape, {7, i}), dtype);
        };
        const Tensor q = made(4, 1), k = made(2, 2), v = made(2, 3), dy = made(4, 4);
        const auto all = attend(q, k, v, dy, in_documents(options, ids));
        int64_t start = 0;
        for (int64_t n : documents) {
          const auto part = [&](const Tensor& x) { return slice(x, time, {start, start + n}); };
          const auto one = attend(part(q), part(k), part(v), part(dy), options);
          for (size_t i : {0, 2, 3, 4}) EXPECT_EQ(part(all[i]).values(), one[i].values()) << i;
          EXPECT_EQ(slice(all[1], 2, {start, start + n}).values(), one[1].values());
          start += n;
        }
      }
    }
  }
}

TEST(Attention, InfinitiesStayInTheirDocument) {
  const Session session;
  const int64_t n = 40, d = 16;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    for (const double bad : {double{INFINITY}, double{NAN}}) {
      for (const bool later : {false, true}) {
        const auto made = [&](uint64_t i) { return cast(normal({1, 2, 2 * n, d}, {9, i}), dtype); };
        const Tensor q = made(1), k = made(2), v = made(3), dy = made(4);
        const int64_t first = later ? n : 0, other = later ? 0 : n;  // the bad document
        for (const Tensor& x : {q, k, v, dy})
          assign_(slice(x, 2, {first + 3, first + 4}), full({1, 2, 1, d}, bad, dtype));
        for (AttentionOptions options :
             {AttentionOptions{.mask = kCausal}, AttentionOptions{},
              AttentionOptions{.mask = kCausal & AttentionMask::window(9)}}) {
          const auto part = [&](const Tensor& x) { return slice(x, 2, {other, other + n}); };
          const auto one = attend(part(q), part(k), part(v), part(dy), options);
          const auto all = attend(q, k, v, dy, in_documents(options, documents_of({n, n})));
          for (size_t i = 0; i < all.size(); ++i) {
            EXPECT_EQ(part(all[i]).values(), one[i].values()) << dtype << ' ' << bad << ' ' << i;
            for (double x : one[i].values()) EXPECT_TRUE(std::isfinite(x)) << i;
          }
        }
      }
    }
  }
}

TEST(Attention, NanScoresGiveANanSum) {
  const Session session;
  const Tensor q = full({1, 1, 3, 8}, NAN), k = ones({1, 1, 5, 8});
  const auto [o, lse] = scaled_dot_product_attention_with_lse(q, k, k);
  for (double x : lse.values()) EXPECT_TRUE(std::isnan(x));
  for (double x : o.values()) EXPECT_TRUE(std::isnan(x));
}

TEST(Attention, ASinkOfMinusInfinityTakesNothing) {
  const Session session;
  const Tensor o = ones({1, 1, 2, 4}),
               lse = from_values(std::vector<double>{-INFINITY, 1}, {1, 1, 2}, DType::f32);
  Tensor x = o.detach().set_requires_grad();
  const Tensor y = attention_sink(x, lse, full({1}, -INFINITY));
  EXPECT_EQ(y.values(), (std::vector<double>{0, 0, 0, 0, 1, 1, 1, 1}));
  backward(y, {.gradient = o});
  EXPECT_EQ(x.grad().values(), y.values());
}

// A document cut by a piece of the queries gives the rows of the whole.
TEST(Attention, LaterQueriesOfADocumentGiveTheRowsOfTheWhole) {
  const Session session;
  const Tensor documents = documents_of({30, 90, 40});
  const Tensor q = normal({1, 2, 160, 8}, {1, 1}), k = normal({1, 2, 160, 8}, {1, 2}),
               v = normal({1, 2, 160, 8}, {1, 3});
  AttentionOptions options = in_documents({.mask = kCausal}, documents);
  const Tensor whole = scaled_dot_product_attention(q, k, v, options);
  options.query_start = 47;
  options.query_documents = slice(documents, 0, {47, 160});
  const Tensor rest = scaled_dot_product_attention(slice(q, 2, {47, 160}), k, v, options);
  EXPECT_EQ(rest.values(), slice(whole, 2, {47, 160}).values());
}

TEST(Attention, OneQueryAgainstACacheIsTheLastRow) {
  const Session session;
  for (const int64_t heads : {2, 6, 140}) {  // up to more heads than a block has rows
    for (const int64_t keys : {1, 65, 2000}) {
      const Tensor q = normal({2, heads, 1, 20}, {1, 1}), k = normal({2, 2, keys, 20}, {1, 2}),
                   v = normal({2, 2, keys, 20}, {1, 3});
      // Sixty-four queries of which the last is the one: a path of its own.
      const Tensor many = expand(q, {2, heads, 64, 20});
      for (const int64_t window : {0, 300}) {
        const AttentionMask mask = window ? kCausal & AttentionMask::window(window) : kCausal;
        const auto one =
            scaled_dot_product_attention_with_lse(q, k, v, {.mask = mask, .query_start = keys - 1});
        const auto all = scaled_dot_product_attention_with_lse(
            many, k, v, {.mask = mask, .query_start = keys - 64});
        const auto close = [&](const Tensor& a, const Tensor& b) {
          const auto x = a.values(), y = b.values();
          ASSERT_EQ(x.size(), y.size());
          for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 1e-5);
        };
        close(one[0], slice(all[0], 2, {63, 64}));
        close(one[1], slice(all[1], 2, {63, 64}));
      }
    }
  }
}

// The keys are cut into two parts, at key 320; the query's document ends just before.
TEST(Attention, OneQueryOfADocumentThatEndsBesideACut) {
  const Session session;
  const Tensor q = normal({1, 2, 1, 8}, {1, 1}), k = normal({1, 2, 600, 8}, {1, 2}),
               v = normal({1, 2, 600, 8}, {1, 3});
  const Tensor got = scaled_dot_product_attention(q, k, v,
                                                  {.mask = AttentionMask::document(),
                                                   .query_documents = full({1}, 1, DType::i64),
                                                   .key_documents = documents_of({290, 21, 289})});
  const Range document{290, 311};
  const Tensor want = scaled_dot_product_attention(q, slice(k, 2, document), slice(v, 2, document));
  const auto a = got.values(), b = want.values();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-6);
}

TEST(Attention, ASinkTakesItsShareAndLeavesUnseenRowsZero) {
  const Session session;
  const Tensor x = normal({1, 2, 3, 4}, {1, 1});
  Tensor sink = from_values(std::vector<double>{0.5, -40}, {2}, DType::f32).set_requires_grad();
  const auto [o, lse] =
      scaled_dot_product_attention_with_lse(x, x, x, {.mask = kCausal, .query_start = -1});
  const Tensor y = attention_sink(o, lse, sink);
  const auto before = o.values(), after = y.values(), sums = lse.values();
  for (size_t i = 0; i < after.size(); ++i) {
    const double logit = i / 12 ? -40 : 0.5;
    EXPECT_NEAR(after[i], before[i] / (1 + std::exp(logit - sums[i / 4])), 1e-6);
  }
  backward(y, {.gradient = ones({1, 2, 3, 4})});
  for (double g : sink.grad().values()) EXPECT_TRUE(std::isfinite(g));
  EXPECT_THROW((void)attention_sink(o, lse, ones({3})), ShapeError);
  EXPECT_THROW((void)attention_sink(o, cast(lse, DType::f64), sink), DTypeError);
  const Tensor wide = ones({1, 2, 3, 4}, DType::f64);
  EXPECT_THROW((void)call(op::AttentionSinkBackward{}, {o, lse, sink, wide}), DTypeError);
}

TEST(Attention, CausalQueriesOverMoreKeysSayWhichTheyAre) {
  const Session session;
  const Tensor q = normal({1, 1, 1, 4}, {1, 1}), k = normal({1, 1, 5, 4}, {1, 2});
  const std::string text =
      error_of<ValueError>([&] { (void)scaled_dot_product_attention(q, k, k, {.mask = kCausal}); });
  EXPECT_NE(text.find("mask causal with 1 query and 5 keys, and no query_start: give the position "
                      "of the first query, 4 if the queries are the last tokens of a cache"),
            std::string::npos)
      << text;
  const auto from = [&](int64_t start) {
    return scaled_dot_product_attention(q, k, k, {.mask = kCausal, .query_start = start}).values();
  };
  EXPECT_EQ(from(4), scaled_dot_product_attention(q, k, k).values());  // the last sees all keys
  EXPECT_EQ(from(0), slice(k, 2, {0, 1}).values());                    // the first sees itself
}

// o and lse from the ops that the formula is made of: 0 is added to the scores that are seen, -inf
// to the others.
std::array<Tensor, 2> capped_by_ops(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const Tensor& seen, double cap) {
  const int64_t group = q.size(1) / k.size(1);
  const Tensor products = matmul(q, repeat_interleave(k, group, 1), false, true),
               scores = products / std::sqrt(static_cast<double>(q.size(3)));
  const Tensor masked = tanh(scores / cap) * cap + seen;
  return {matmul(softmax(masked), repeat_interleave(v, group, 1)), logsumexp(masked, {3})};
}

TEST(Attention, CappedScoresAreTanhBeforeTheMask) {
  const Session session;
  struct Sizes {
    int64_t h, h_kv, t, s, d, dv;
  };
  for (const Sizes& z :
       {Sizes{2, 2, 7, 7, 5, 3}, Sizes{6, 2, 67, 131, 9, 12}, Sizes{3, 1, 65, 65, 33, 7},
        Sizes{4, 2, 1, 1, 4, 4}, Sizes{4, 2, 1, 90, 8, 5}, Sizes{6, 3, 1, 700, 8, 5}}) {
    for (const AttentionMask& mask :
         {AttentionMask(), kCausal, kCausal & AttentionMask::window(20)}) {
      std::vector<double> hidden;
      for (int64_t i = 0; i < z.t; ++i) {
        for (int64_t j = 0; j < z.s; ++j) {
          const int64_t back = i + z.s - z.t - j;
          const bool seen = (!mask.has(AttentionMask::Kind::causal) || back >= 0) &&
                            (!mask.has(AttentionMask::Kind::window) || std::abs(back) < 20);
          hidden.push_back(seen ? 0 : -INFINITY);
        }
      }
      const Tensor seen = from_values(hidden, {z.t, z.s}, DType::f64);
      for (const double cap : {0.5, 50.}) {
        const auto made = [&](int64_t heads, int64_t n, int64_t d, uint64_t i) {
          return normal({2, heads, n, d}, {13, i}, 0, 2, DType::f64);
        };
        const Tensor dout = made(z.h, z.t, z.dv, 4), dlse = select(made(z.h, z.t, 1, 5), 3, 0);
        const auto results = [&](const auto& attention) {
          const std::vector<Tensor> in{made(z.h, z.t, z.d, 1).set_requires_grad(),
                                       made(z.h_kv, z.s, z.d, 2).set_requires_grad(),
                                       made(z.h_kv, z.s, z.dv, 3).set_requires_grad()};
          const std::array<Tensor, 2> y = attention(in[0], in[1], in[2]);
          auto all = grad({y[0], y[1]}, in, {.grad_outputs = {dout, dlse}});
          all.insert(all.end(), y.begin(), y.end());
          return all;
        };
        const AttentionOptions options{.mask = mask, .soft_cap = cap, .query_start = z.s - z.t};
        const auto got = results([&](const Tensor& q, const Tensor& k, const Tensor& v) {
          return scaled_dot_product_attention_with_lse(q, k, v, options);
        });
        const auto want = results([&](const Tensor& q, const Tensor& k, const Tensor& v) {
          return capped_by_ops(q, k, v, seen, cap);
        });
        for (size_t i = 0; i < want.size(); ++i) {
          const auto a = got[i].values(), b = want[i].values();
          ASSERT_EQ(a.size(), b.size());
          for (size_t j = 0; j < a.size(); ++j) {
            ASSERT_NEAR(a[j], b[j], 1e-10) << "result " << i << " of " << z.t << " queries and "
                                           << z.s << " keys, mask " << mask << ", cap " << cap;
          }
        }
      }
    }
  }
}

TEST(Attention, ACapIsOneOfManyNumbers) {
  const Session session;
  const Tensor x = normal({1, 1, 5, 4}, {1, 1});
  const auto with = [&](double cap) {
    return scaled_dot_product_attention(x, x, x, {.soft_cap = cap}).values();
  };
  for (const double cap : {-1., -1e-9, 1e-31, 1e31, double{INFINITY}, double{NAN}}) {
    const std::string text = error_of<ValueError>([&] { (void)with(cap); });
    EXPECT_NE(text.find("expected 0 for none, or a number from 1e-30 to 1e30"), std::string::npos)
        << cap << ": " << text;
  }
  EXPECT_EQ(with(0), scaled_dot_product_attention(x, x, x).values());
  for (const double cap : {1e-30, 1e30}) {  // all scores are 0; none is another
    const auto got = with(cap);
    const auto want =
        scaled_dot_product_attention(cap < 1 ? full({1, 1, 5, 4}, 0) : x, x, x).values();
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5) << cap;
  }
}

// Scores that overflow are the cap.
TEST(Attention, InfiniteScoresAreTheCap) {
  const Session session;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor q = cast(full({1, 1, 70, 8}, 1e30), dtype).set_requires_grad(),
                 v = cast(normal({1, 1, 70, 8}, {1, 3}), dtype);
    const auto [o, lse] =
        scaled_dot_product_attention_with_lse(q, q, v, {.mask = kCausal, .soft_cap = 30});
    backward(o, {.gradient = ones({1, 1, 70, 8}, dtype)});
    for (size_t i = 0; i < 70; ++i)
      EXPECT_NEAR(lse.values()[i], 30 + std::log(static_cast<double>(i + 1)), 1e-5) << dtype;
    for (const double x : o.values()) EXPECT_TRUE(std::isfinite(x)) << dtype;
    for (const double x : q.grad().values()) EXPECT_EQ(x, 0) << dtype;
  }
}

TEST(Attention, ErrorsOfMasksSayWhatWasGivenAndExpected) {
  const Session session;
  const Tensor x = normal({1, 1, 5, 4}, {1, 1});
  const auto with = [&](const AttentionOptions& options) {
    return [&, options] { (void)scaled_dot_product_attention(x, x, x, options); };
  };
  const auto holds = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const Tensor ids = documents_of({3, 2}), few = documents_of({2});
  const AttentionMask packed = kCausal & AttentionMask::document();
  holds(error_of<ValueError>([] { (void)AttentionMask::window(-3); }), "window(-3): expected 1");
  holds(error_of<ValueError>([] { (void)AttentionMask::chunk(0); }), "chunk(0): expected 1");
  holds(error_of<ValueError>([] {
          AttentionMask mask = kCausal;
          for (int i = 1; i < 9; ++i) mask = mask | AttentionMask::prefix(i);
        }),
        "9 conditions in one mask: expected at most 8; give a block map with bits");
  holds(error_of<ShapeError>(with({.mask = kCausal, .query_positions = few})),
        "query_positions must be (B, T) = [1, 5] or (T)");
  holds(error_of<ShapeError>(with({.mask = kCausal, .key_positions = few})),
        "key_positions must be (B, S) = [1, 5] or (S)");
  holds(error_of<ValueError>(with({.mask = kCausal, .query_start = 2, .query_positions = ids})),
        "query_start is 2 and query_positions are i64[5]: expected one of them");
  holds(error_of<ValueError>(with({.mask = packed, .query_documents = ids})),
        "the mask causal & document asks for documents, but key_documents are missing");
  holds(error_of<ValueError>(with({.mask = kCausal, .query_documents = ids, .key_documents = ids})),
        "query_documents are given, but the mask causal does not ask for them");
  holds(error_of<ShapeError>(with({.block_map = {full({1, 2, 1}, 1, DType::i32)}})),
        "blocks must be (B or 1, T / 64, S / 64), rounded up, = [1, 1, 1]");
  holds(error_of<ValueError>(with({.block_map = {full({1, 1, 1}, 4, DType::i32)}})),
        "blocks[0][0][0] of i32[1, 1, 1] is 4: expected 0 to 2, as there are 0 blocks of bits");
  const Tensor wide = normal({1, 1, 5, 6}, {1, 2});
  holds(error_of<ShapeError>([&] { (void)scaled_dot_product_attention(x, wide, x); }),
        "batch and head size of q and k must be equal");
}

// Odd sizes, empty ones and inputs of any strides, against f64; a machine may multiply bf16 in its
// own way.
TEST(Attention, EveryDtypeGivesWhatF64Gives) {
  const Session session;
  struct Sizes {
    int64_t b, h, hkv, t, s, d, dv;
  };
  for (const auto& z :
       {Sizes{1, 2, 1, 65, 97, 33, 33}, Sizes{2, 2, 2, 17, 17, 1, 1}, Sizes{1, 3, 3, 33, 5, 40, 40},
        Sizes{1, 1, 1, 129, 200, 128, 128}, Sizes{0, 2, 2, 3, 3, 8, 8}, Sizes{1, 2, 2, 0, 3, 8, 8},
        Sizes{1, 2, 2, 3, 0, 8, 8}, Sizes{1, 0, 0, 3, 3, 8, 8}, Sizes{1, 2, 2, 3, 3, 0, 0},
        Sizes{2, 6, 2, 1, 130, 40, 40}, Sizes{1, 140, 2, 1, 70, 24, 24},
        Sizes{1, 4, 2, 70, 90, 192, 128}, Sizes{1, 2, 1, 65, 65, 40, 7},
        Sizes{1, 2, 1, 65, 70, 8, 49}, Sizes{1, 2, 2, 9, 9, 8, 0},
        Sizes{1, 6, 2, 1, 600, 40, 24}}) {
    struct Variant {
      int64_t window;
      double cap;
    };
    for (const auto [window, cap] : {Variant{0, 0}, Variant{40, 0}, Variant{40, 0.7}}) {
      const AttentionOptions options{
          .mask = window ? kCausal & AttentionMask::window(window) : kCausal,
          .soft_cap = cap,
          .query_start = z.s - z.t};
      const auto made = [&](int64_t heads, int64_t n, int64_t d, uint64_t i) {
        // d is the slowest dim in memory.
        return transpose(cast(normal({d, z.b, heads, n}, {3, i}), DType::bf16), 0, 3);
      };
      const auto ordered = [](const Tensor& x) { return transpose(transpose(x, 0, 1), 1, 2); };
      const Tensor q = ordered(made(z.h, z.t, z.d, 1)), k = ordered(made(z.hkv, z.s, z.d, 2)),
                   v = ordered(made(z.hkv, z.s, z.dv, 3)), dy = ordered(made(z.h, z.t, z.dv, 4));
      ASSERT_EQ(q.shape(), (Shape{z.b, z.h, z.t, z.d}));
      const auto wide = [](const Tensor& x) { return cast(x, DType::f64); };
      const auto want = attend(wide(q), wide(k), wide(v), wide(dy), options);
      for (const DType t : {DType::bf16, DType::f16, DType::f32}) {
        const auto got = attend(cast(q, t), cast(k, t), cast(v, t), cast(dy, t), options);
        const double tolerance = t == DType::bf16 ? 1e-2 : t == DType::f16 ? 2e-3 : 1e-5;
        for (size_t i = 0; i < want.size(); ++i) {
          const auto a = got[i].values(), b = want[i].values();
          ASSERT_EQ(a.size(), b.size());
          double gap = 0, size = 1e-12;
          for (size_t j = 0; j < a.size(); ++j) {
            if (a[j] == b[j]) continue;  // -inf, where a row sees nothing
            gap += (a[j] - b[j]) * (a[j] - b[j]);
            size += b[j] * b[j];
          }
          EXPECT_LE(std::sqrt(gap / size), tolerance) << t << ", result " << i << " of " << q.meta()
                                                      << ", window " << window << ", cap " << cap;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera
