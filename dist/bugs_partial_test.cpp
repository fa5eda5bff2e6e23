// SPDX-License-Identifier: Apache-2.0
// Bugs that others had in the algebra of partial sums, each as a test of what it broke. The numbers
// are issues of PyTorch unless another project is named.
#include "tessera/dist/planner/planner.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/cumsum/cumsum.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/topk/topk.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/trials.h"

#include <algorithm>

namespace tessera {
namespace {

using namespace trial;
using test::on_ranks;

const Placement R = Replicate(), S0 = Shard(0), S1 = Shard(1), P = Partial();

struct Trial {
  const Mesh mesh = Mesh::make({{"a", 4}});
  [[nodiscard]] Tensor on(const Tensor& whole, Placement p) const {
    return distribute(whole, Layout::of(mesh, {p}));
  }
  /// A partial sum whose terms are all unlike zero.
  [[nodiscard]] Tensor partial(const Shape& shape, double salt = 0) const {
    return matmul(on(numbers({shape[0], 8}, salt), S1), on(numbers({8, shape[1]}, salt + 1), S0));
  }
  [[nodiscard]] static Tensor whole(const Shape& shape, double salt = 0) {
    return matmul(numbers({shape[0], 8}, salt), numbers({8, shape[1]}, salt + 1));
  }
};

// Refused, or right where the planner may send; in silence never wrong.
void expect_refused_or_right(const std::function<Tensor()>& f, const Tensor& want) {
  try {
    expect_same(f(), want);
  } catch (const LayoutError&) {
  }
  const AutoRedistribute wish;
  expect_same(f(), want);
}

// #149768, #163193: a number was added to every rank's term.
TEST(PartialBugs, ANumberIsAddedOnce) {
  on_ranks(4, [](World&) {
    const Trial t;
    const Tensor p = t.partial({3, 5}), whole = Trial::whole({3, 5});
    ASSERT_EQ(placements(p), "{a: Partial()}");
    expect_same(p, whole);
    expect_refused_or_right([&] { return p + 2.5; }, whole + 2.5);
    expect_refused_or_right([&] { return p - 2.5; }, whole - 2.5);
    expect_refused_or_right([&] { return affine(p, -1, 1); }, affine(whole, -1, 1));
    const Tensor one = tensor(1.0, DType::f64);
    expect_refused_or_right([&] { return add(p, one); }, add(whole, one));
    expect_refused_or_right([&] { return add(one, p); }, add(whole, one));
    expect_refused_or_right([&] { return sub(one, p); }, sub(one, whole));
    expect_refused_or_right([&] { return mul(p, p); }, mul(whole, whole));
    expect_refused_or_right([&] { return div(one, p); }, div(one, whole));
  });
}

// #153603, #147180: the multiplier of an earlier call came out of the cache.
TEST(PartialBugs, EachMultiplierIsItsOwn) {
  on_ranks(4, [](World& world) {
    const Trial t;
    const Tensor p = t.partial({3, 5}), whole = Trial::whole({3, 5});
    for (const double by : {2.0, -5.0, 2.0, 0.5, -0.0}) {
      expect_same(p * by, whole * by);
      const AutoRedistribute wish;
      expect_same(p + by, whole + by);
    }
    EXPECT_EQ(placements(p * 2.0), "{a: Partial()}");
    // #178276: nor does each of them take room in the cache, where they do not decide the plan.
    const auto before = world.planner().counts();
    for (int i = 1; i <= 100; ++i) expect_same(local(p * (0.37 * i)), local(p) * (0.37 * i), 0);
    EXPECT_EQ(world.planner().counts().misses, before.misses);
  });
}

// #162460: a copy reduced a partial sum, or lost terms of it.
TEST(PartialBugs, CopiesStayPartial) {
  on_ranks(4, [](World&) {
    const Trial t;
    const Tensor p = t.partial({3, 5});
    const CommTrace trace;
    const Tensor c = copy(p);
    EXPECT_EQ(placements(c), "{a: Partial()}");
    EXPECT_EQ(layout_of(p.detach()), layout_of(p));
    EXPECT_EQ(trace.count(), 0);
    expect_same(local(c), local(p), 0);
  });
}

// #162460: one partial tensor written into another lost terms, or was reduced on the way. #163374:
// what was clamped in place stayed partial, each term clamped.
TEST(PartialBugs, WritingInPlaceIsRefusedOrWritesTheSum) {
  on_ranks(4, [](World&) {
    const Trial t;
    const Tensor whole = Trial::whole({3, 5}), before = numbers({3, 5}, 4);
    for (const Placement p : {R, S0, S1, P}) {
      const Layout layout = Layout::of(t.mesh, {p});
      for (const bool may_send : {false, true}) {
        // Refused writes leave what was there; the others write the value that one rank writes.
        const auto expect_written_or_left = [&](const auto& write, const Tensor& want) {
          const Tensor to =
              p == P ? redistribute(t.on(before, R), {P}) : distribute(copy(before), layout);
          bool written = true;
          try {
            if (may_send) {
              const AutoRedistribute wish;
              write(to);
            } else {
              write(to);
            }
          } catch (const LayoutError&) {
            written = false;
          }
          EXPECT_EQ(layout_of(to), layout);
          EXPECT_EQ(written, p != P && may_send) << layout.placements_text();
          expect_same(to, written ? want : before);
        };
        expect_written_or_left([&](const Tensor& to) { assign_(to, t.partial({3, 5})); }, whole);
        expect_written_or_left(
            [&](const Tensor& to) {
              assign_(to, clamp(t.partial({3, 5}), {.min = -0.5, .max = 0.5}));
            },
            clamp(whole, {.min = -0.5, .max = 0.5}));
      }
    }
  });
}

// jax #21403: sums of all elements up to each began anew in every part.
TEST(PartialBugs, RunningSumsPassTheCuts) {
  on_ranks(4, [](World&) {
    const Trial t;
    const Tensor whole = numbers({6, 9}), sums = Trial::whole({3, 5});
    for (const bool reverse : {false, true}) {
      for (const int dim : {0, 1}) {
        const Tensor want = cumsum(whole, dim, reverse);
        const Tensor cut = t.on(whole, dim == 0 ? S0 : S1), other = t.on(whole, dim == 0 ? S1 : S0);
        EXPECT_THROW((void)cumsum(cut, dim, reverse), LayoutError);
        expect_refused_or_right([&] { return cumsum(cut, dim, reverse); }, want);
        const CommTrace trace;
        EXPECT_EQ(layout_of(cumsum(other, dim, reverse)), layout_of(other));
        expect_same(local(cumsum(other, dim, reverse)), cumsum(local(other), dim, reverse), 0);
        const Tensor p = t.partial({3, 5}), of_terms = cumsum(p, dim, reverse);
        EXPECT_EQ(placements(of_terms), "{a: Partial()}");
        EXPECT_EQ(trace.count(), 0) << trace;
        expect_same(of_terms, cumsum(sums, dim, reverse));
      }
    }
  });
}

// #159856: the norm of a partial sum was the norm of its terms. #165962: so were max and clipping.
TEST(PartialBugs, NormsMaximaAndScalingNeverTakeTermsForTheSum) {
  on_ranks(4, [](World&) {
    const Trial t;
    const Tensor p = t.partial({3, 5}), whole = Trial::whole({3, 5});
    TESSERA_EXPECT_HOLDS(error_of<LayoutError>([&] { (void)norm({p}); }), "redistribute(input");
    EXPECT_EQ(norm({redistribute(p, {R})}).item(), norm({whole}).item());
    EXPECT_EQ(norm({redistribute(p, {S0})}).item(), norm({whole}).item());
    EXPECT_EQ(norm({t.on(whole, S1), t.on(whole, R), t.on(whole, S0)}).item(),
              norm({whole, whole, whole}).item());
    EXPECT_THROW((void)norm({t.on(whole, S0), whole}), LayoutError);
    expect_refused_or_right([&] { return max(p, 1)[0]; }, max(whole, 1)[0]);
    expect_refused_or_right([&] { return exp(p); }, exp(whole));
    expect_refused_or_right([&] { return silu(p); }, silu(whole));
    // Clipping scales each element once, over layouts and meshes (#180346).
    const Mesh two = Mesh::make({{"x", 2}, {"y", 2}});
    const Tensor a = t.on(whole, S0), b = distribute(whole, Layout::of(two, {S0, S1})),
                 c = copy(whole), d = copy(whole);
    const double size = norm({c, d}).item();
    EXPECT_EQ(norm({a, b}).item(), size);
    scale_({a, b}, 0.5 / size);
    scale_({c, d}, 0.5 / size);
    expect_same(a, c, 0);
    expect_same(b, d, 0);
    try {
      const Tensor q = t.partial({3, 5});
      scale_({q}, 2);
      expect_same(q, whole * 2.0);
    } catch (const LayoutError&) {
    }
  });
}

// #162692: the mean of uneven parts was the mean of their means; NaN with an empty one. #185167: so
// was the loss.
TEST(PartialBugs, MeansCountElementsNotRanks) {
  on_ranks(4, [](World&) {
    const Trial t;
    for (const int64_t n : {1, 2, 3, 5, 6, 9}) {
      const Tensor whole = numbers({n, 3});
      const Tensor x = t.on(whole, S0);
      expect_same(mean(x, {0}), mean(whole, {0}));
      expect_same(mean(x, {}), mean(whole, {}));
      expect_same(mean(x, {1}), mean(whole, {1}));
      std::vector<double> ids;
      for (int64_t i = 0; i < n; ++i) ids.push_back(i % 3 == 1 ? -100 : static_cast<double>(i % 3));
      const Tensor targets = from_values(ids, {n}, DType::i64);
      const auto [sum, count] = cross_entropy(x, t.on(targets, S0));
      const auto [want_sum, want_count] = cross_entropy(whole, targets);
      EXPECT_EQ(full_tensor(count).item(), want_count.item());
      expect_same(sum, want_sum);
    }
  });
}

// #185167: the mean of a loss by class weights was divided by the weights of the own rows.
TEST(PartialBugs, WeightedMeansDivideByAllWeights) {
  on_ranks(4, [](World&) {
    const Trial t;
    for (const int64_t n : {1, 3, 6, 9}) {
      const Tensor x = numbers({n, 3}), w = numbers({n, 3}, 2);
      const auto mean_of = [](const Tensor& values, const Tensor& weights) {
        return div(sum(mul(values, weights)), sum(weights));
      };
      const Tensor want = mean_of(x, w);
      for (const Placement p : {R, S0, S1}) {
        expect_refused_or_right([&] { return mean_of(t.on(x, p), t.on(w, p)); }, want);
        // Weights of the rows alone, the same on every rank or cut as the rows are.
        const Tensor rows = numbers({n, 1}, 3);
        expect_refused_or_right([&] { return mean_of(t.on(x, p), t.on(rows, p == S0 ? S0 : R)); },
                                mean_of(x, rows));
      }
      // Both sums on every rank first: then nothing is left to be refused.
      const Tensor top = redistribute(sum(mul(t.on(x, S0), t.on(w, S0))), {R}),
                   below = redistribute(sum(t.on(w, S0)), {R});
      expect_same(div(top, below), want);
    }
  });
}

// #168940, #173936, tt-mlir #8623: indices of a maximum over a cut dim were joined as numbers, or
// counted in the part. jax #19271: the same of the largest k.
TEST(PartialBugs, IndicesAreGlobal) {
  on_ranks(4, [](World&) {
    const Trial t;
    const Tensor whole = numbers({5, 9});
    for (const Placement p : {S0, S1, R, P}) {
      const Tensor x = p == P ? redistribute(t.on(whole, R), {P}) : t.on(whole, p);
      for (const int dim : {0, 1}) {
        const auto want = max(whole, dim);
        const auto want_top = topk(whole, 3, dim);
        for (const size_t o : {0, 1}) {
          expect_refused_or_right([&] { return max(x, dim)[o]; }, want[o]);
          expect_refused_or_right([&] { return topk(x, 3, dim)[o]; }, want_top[o]);
        }
      }
    }
    EXPECT_THROW((void)max(t.on(whole, S1), 1), LayoutError);
    EXPECT_THROW((void)topk(t.on(whole, S1), 3, 1), LayoutError);
  });
}

// #180486: accumulating into a partial gradient reduced it at each step.
TEST(PartialBugs, GradientsAccumulatePartialWithoutSending) {
  on_ranks(4, [](World&) {
    const Trial t;
    Tensor w = variable(numbers({8, 3}), Layout::of(t.mesh, {R})), v = variable(numbers({8, 3}));
    const CommTrace trace;
    for (int step = 0; step < 3; ++step) {
      const Tensor x = numbers({6, 8}, step);
      // The second gradient comes transposed, with other strides.
      const auto loss = [&](const Tensor& input, const Tensor& weight) {
        return step == 1 ? sum(matmul(transpose(weight, 0, 1), transpose(input, 0, 1)))
                         : sum(matmul(input, weight));
      };
      backward(loss(t.on(x, S0), w));
      backward(loss(x, v));
    }
    EXPECT_EQ(placements(w.grad()), "{a: Partial()}");
    EXPECT_EQ(trace.count(), 0) << trace;
    expect_same(redistribute(w.grad(), {R}), v.grad());
    EXPECT_EQ(trace.count("all_reduce"), 1) << trace;
  });
}

// #183363: a cast could not keep a partial, and sums were made in bf16.
TEST(PartialBugs, WideningKeepsPartialsAndNarrowingNeverReducesInSilence) {
  on_ranks(4, [](World&) {
    const Trial t;
    const Tensor a = numbers({4, 8}, 0, DType::bf16), b = numbers({8, 4}, 1, DType::bf16);
    const Tensor p = matmul(t.on(a, S1), t.on(b, S0));
    const CommTrace trace;
    const Tensor wide = cast(p, DType::f32);
    EXPECT_EQ(placements(wide), "{a: Partial()}");
    EXPECT_EQ(trace.count(), 0);
    // Sums of terms that were widened first, with one rounding: the gather makes no other.
    std::vector<double> terms(16, 0.0);
    const Tensor all = empty({4, 16}, DType::f32);
    World::current().group().all_gather(alias(local(wide), {16}, {1}, 0), all)->wait();
    const auto v = all.values();
    for (size_t i = 0; i < v.size(); ++i) terms[i % 16] += v[i];
    expect_same(wide, from_values(terms, {4, 4}, DType::f32), 1e-6);
    EXPECT_THROW((void)cast(wide, DType::bf16), LayoutError);
  });
}

}  // namespace
}  // namespace tessera
