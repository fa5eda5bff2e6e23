// SPDX-License-Identifier: Apache-2.0
// Bugs that others had in where gradients lie and how often they are counted, each as a test of
// what it broke. The numbers are issues of PyTorch unless another project is named.
#include "tessera/dist/local_region.h"
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/rms_norm/rms_norm.h"
#include "tessera/kernels/softmax/softmax.h"
#include "tessera/tests/support/trials.h"

namespace tessera {
namespace {

using namespace trial;
using test::on_ranks;

const Placement R = Replicate(), S0 = Shard(0), S1 = Shard(1), P = Partial();
using List = std::vector<Tensor>;

// #172932: leaving and entering the global view in the middle of a partial sum changed its
// gradient.
TEST(GradientBugs, ARegionOverAPartialSumChangesNoGradient) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"tp", 4}});
    const Tensor x = numbers({3, 8}), w = numbers({8, 5}, 1), g = numbers({3, 5}, 2);
    Tensor plain = variable(w);
    backward(sum(mul(matmul(x, plain), g)));
    for (const bool region : {false, true}) {
      Tensor dw = variable(w, Layout::of(m, {S0}));
      Tensor y = matmul(distribute(x, Layout::of(m, {S1})), dw);
      ASSERT_EQ(placements(y), "{tp: Partial()}");
      if (region) {
        y = local_region([](const List& in) { return List{in[0] * 1.0}; },
                         {{y, {AxisType::partial}}},
                         {{layout_of(y), y.shape(), {AxisType::partial}}})[0];
      }
      const Tensor whole = redistribute(y, {R});
      backward(sum(mul(whole, distribute(g, Layout::of(m, {R})))));
      expect_same(dw.grad(), plain.grad());
    }
  });
}

// torchtitan #1805: a replicated input of a region got the gradient of this rank's part of the work
// alone. #175867, torchtitan #2416: one that all ranks use alike got it once per rank.
TEST(GradientBugs, ReplicatedInputsOfRegionsSayWhatTheirGradientIs) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"tp", 4}});
    const Layout whole = Layout::of(m, {R}), cut = Layout::of(m, {S1});
    const Tensor x = numbers({3, 8}), w = numbers({8, 6}, 1);  // 6 columns: 2, 2, 2, 0
    Tensor plain = variable(x);
    const Tensor want = matmul(plain, w);
    backward(sum(mul(want, want)));

    Tensor shared = variable(x, whole);
    const Tensor y =
        local_region([](const List& in) { return List{matmul(in[0], in[1])}; },
                     {{shared, {AxisType::replicate}}, {distribute(w, cut), {AxisType::varying}}},
                     {{cut, {3, 6}, {AxisType::varying}}})[0];
    expect_same(y, want);
    backward(sum(mul(y, y)));
    EXPECT_EQ(placements(shared.grad()), "{tp: Partial()}");
    expect_same(shared.grad(), plain.grad());

    Tensor alike = variable(x, whole);
    const CommTrace trace;
    const Tensor z =
        local_region([&](const List& in) { return List{matmul(in[0], w)}; },
                     {{alike, {AxisType::invariant}}}, {{whole, {3, 6}, {AxisType::invariant}}})[0];
    backward(sum(mul(z, z)));
    EXPECT_EQ(trace.count(), 0) << trace;
    EXPECT_EQ(placements(alike.grad()), "{tp: Replicate()}");
    expect_same(alike.grad(), plain.grad());
    // There is no third answer, and none by default.
    EXPECT_THROW((void)local_region([](const List& in) { return in; }, {{alike, {}}},
                                    {{whole, {3, 8}, {AxisType::invariant}}}),
                 LayoutError);
  });
}

// torchtitan #2532: a norm's weight is used by each rank on its part of the sequence, and its
// gradient was never added up.
TEST(GradientBugs, ANormsWeightGetsTheGradientOfTheWholeSequence) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"tp", 4}});
    const Tensor x = numbers({2, 5, 6}), weight = numbers({6}, 3);
    Tensor plain_x = variable(x), plain = variable(weight);
    const Tensor want = rms_norm(plain_x, plain, 1e-5);
    backward(sum(mul(want, want)));
    Tensor dx = variable(x, Layout::of(m, {S1})), w = variable(weight, Layout::of(m, {R}));
    const Tensor y = rms_norm(dx, w, 1e-5);
    expect_same(y, want);
    backward(sum(mul(y, y)));
    EXPECT_EQ(placements(w.grad()), "{tp: Partial()}");
    EXPECT_EQ(placements(dx.grad()), "{tp: Shard(1)}");
    expect_same(w.grad(), plain.grad());
    expect_same(dx.grad(), plain_x.grad());
    expect_equal_on_all_ranks(redistribute(w.grad(), {R}));
  });
}

// torchtitan #2106: a replicated bias on a partial sum counted tp times, forward and backward.
// torchtitan #4332: the bias divided by tp counted once, and its gradient 1 / tp times.
TEST(GradientBugs, ABiasOnAPartialSumCountsOnce) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"tp", 4}});
    const Tensor x = numbers({3, 8}), w = numbers({8, 5}, 1), b = numbers({5}, 2);
    const auto loss = [](const Tensor& y) { return sum(mul(y, y)); };
    Tensor pw = variable(w), pb = variable(b);
    const Tensor want = add(matmul(x, pw), pb);
    backward(loss(want));
    for (const bool reduce_first : {false, true}) {
      Tensor dw = variable(w, Layout::of(m, {S0})), db = variable(b, Layout::of(m, {R}));
      Tensor y = matmul(distribute(x, Layout::of(m, {S1})), dw);
      if (reduce_first) y = redistribute(y, {R});
      y = add(y, db);
      expect_same(y, want);
      backward(loss(redistribute(y, {R})));
      expect_same(dw.grad(), pw.grad());
      expect_same(db.grad(), pb.grad());
      expect_equal_on_all_ranks(redistribute(db.grad(), {R}));
    }
  });
}

// torchtitan #1373: a key that all heads share got the gradient of this rank's heads.
TEST(GradientBugs, WhatAllHeadsShareGetsTheGradientOfAllHeads) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"dp", 2}, {"tp", 2}});
    const Tensor q = numbers({2, 3, 6, 4}), k = numbers({2, 3, 1, 4}, 1);
    Tensor pq = variable(q), pk = variable(k);
    const auto loss = [](const Tensor& a, const Tensor& b) {
      const Tensor s = sum(mul(a, b), {3});
      return sum(mul(s, s));
    };
    backward(loss(pq, pk));
    Tensor dq = variable(q, Layout::of(m, {S0, Shard(2)})),
           dk = variable(k, Layout::of(m, {S0, R}));
    backward(loss(dq, dk));
    EXPECT_EQ(placements(dk.grad()), "{dp: Shard(0), tp: Partial()}");
    expect_same(dk.grad(), pk.grad());
    expect_same(dq.grad(), pq.grad());
    expect_equal_on_all_ranks(redistribute(dk.grad(), {R, R}));
  });
}

// #190746: while a loss ran over a cut vocabulary, every other softmax lost its gradient.
TEST(GradientBugs, ACutVocabularyLeavesOtherSoftmaxesAlone) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"tp", 4}});
    const Tensor x = numbers({5, 6}), w = numbers({6, 11}, 1),
                 t = tensor({0, 10, -100, 4, 7}, DType::i64);
    const auto loss = [](const Tensor& h, const Tensor& weight, const Tensor& targets) {
      return cross_entropy(matmul(softmax(h, -1), weight), targets).sum;
    };
    Tensor px = variable(x), pw = variable(w);
    backward(loss(px, pw, t));
    Tensor dx = variable(x, Layout::of(m, {R})), dw = variable(w, Layout::of(m, {S1}));
    backward(loss(dx, dw, distribute(t, Layout::of(m, {R}))));
    expect_same(dx.grad(), px.grad());
    expect_same(dw.grad(), pw.grad());
  });
}

// Megatron #7452: gathered logits were taken for a part of the vocabulary, off by log(tp); losses
// were divided by the counts of a rank (#7513 the same). Label smoothing, where it used the local
// vocabulary too, is no option here.
TEST(GradientBugs, TheLossIsThatOfTheWholeVocabularyAndOfAllTokens) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"dp", 2}, {"tp", 2}});
    const double inf = std::numeric_limits<double>::infinity();
    auto values = numbers({3, 3, 7}).values();
    std::fill_n(values.begin() + 4, 3,
                -inf);  // row 0: nothing in the second part of the vocabulary
    const Tensor logits = from_values(values, {3, 3, 7}, DType::f64);
    // Two tokens of nine count on one dp rank, none on the other.
    const Tensor t = tensor({{3, 6, -100}, {-100, -100, -100}, {-100, -100, -100}}, DType::i64);
    Tensor plain = variable(logits);
    const auto [want, want_count] = cross_entropy(plain, t);
    backward(want);
    EXPECT_EQ(want_count.item(), 2);
    const Placement V = Shard(2);
    for (const auto& [dp, tp] :
         {std::pair{S0, V}, {V, S0}, {V, V}, {R, V}, {S0, R}, {R, R}, {S0, S1}}) {
      const auto without_v = [&](Placement p) { return p == V ? R : p; };
      Tensor x = variable(logits, Layout::of(m, {dp, tp}));
      const Tensor targets = distribute(t, Layout::of(m, {without_v(dp), without_v(tp)}));
      const CommTrace trace;
      const auto [loss, count] = cross_entropy(x, targets);
      const bool cut = dp == V || tp == V;
      EXPECT_EQ(trace.count(), cut ? 2 : 0) << trace;
      EXPECT_LE(trace.bytes(), 3 * 9 * 8) << trace;  // three numbers a row
      expect_same(loss, want);
      EXPECT_EQ(full_tensor(count).item(), 2);
      backward(loss);
      EXPECT_EQ(trace.count({}, "grad"), 0) << trace;
      EXPECT_EQ(layout_of(x.grad()), layout_of(x));
      expect_same(x.grad(), plain.grad());
    }
    // An id is wrong by the whole vocabulary, and on all ranks.
    const Tensor wrong = tensor({{3, 7, -100}, {-100, -100, -100}, {-100, -100, -100}}, DType::i64);
    TESSERA_EXPECT_HOLDS(error_of<IndexError>([&] {
                           (void)cross_entropy(distribute(logits, Layout::of(m, {R, V})),
                                               distribute(wrong, Layout::of(m, {R, R})));
                         }),
                         "expected 0 to 6");
  });
}

// Megatron #6660: a gradient over an axis of one rank was doubled with each microbatch. Fast-LLM
// #550: it was overwritten.
TEST(GradientBugs, AxesOfOneRankAccumulateAsOthersDo) {
  for (const int n : {1, 2}) {
    on_ranks(n, [n](World&) {
      const Mesh m = Mesh::make({{"ep", 1}, {"dp", n}, {"tp", 1}});
      const Tensor w = numbers({6, 3});
      Tensor dw = variable(w, Layout::of(m, {R, R, S1})), pw = variable(w);
      for (int micro = 0; micro < 3; ++micro) {
        const Tensor x = numbers({3, 6}, micro);
        const Tensor y = matmul(distribute(x, Layout::of(m, {R, S0, R})), dw), z = matmul(x, pw);
        backward(sum(mul(y, y)));
        backward(sum(mul(z, z)));
      }
      const CommTrace trace;
      const Tensor g = redistribute(dw.grad(), layout_of(dw));
      EXPECT_EQ(trace.count(), n > 1) << trace;
      expect_same(g, pw.grad());
      // Partial over one rank, too, is what it says.
      expect_same(redistribute(redistribute(dw.grad(), {P, R, R}), {S0, R, S1}), pw.grad());
    });
  }
}

}  // namespace
}  // namespace tessera
