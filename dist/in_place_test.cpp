// SPDX-License-Identifier: Apache-2.0
// In-place ops on distributed tensors: optimizer steps and scaling change the parts that ranks
// hold, to the bits that one rank has; what cannot be done in place is refused before anything is
// written.
#include "tessera/dist/planner/planner.h"
#include "tessera/kernels/adamw/adamw.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/tests/support/trials.h"

namespace tessera {
namespace {

using namespace trial;
using test::on_ranks;

const Placement R = Replicate(), S0 = Shard(0), S1 = Shard(1);

// torchtitan and PyTorch (#134212, #176076): ranks whose shard is empty left the step out, and
// lists of unlike layouts were refused.
TEST(InPlace, AnOptimizerStepHasTheBitsOfOneRankUnderAnyLayout) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"dp", 2}, {"tp", 2}});
    const std::vector<Shape> shapes{{5, 6}, {1, 3}, {7}, {3, 9}, {0, 4}};
    const std::vector<Layout> layouts{
        Layout::of(m, {S0, S1}), Layout::of(m, {S0, S0}), Layout::of(m, {S0, R}),
        Layout::ordered(m, std::vector{S1, S1}, {{"tp", "dp"}}), Layout::of(m, {R, R})};
    const auto filled = [&](double salt, bool distributed) {
      std::vector<Tensor> all;
      for (size_t i = 0; i < shapes.size(); ++i) {
        const Tensor whole = numbers(shapes[i], salt + static_cast<double>(i), DType::f32);
        all.push_back(distributed ? distribute(whole, layouts[i]) : whole);
      }
      return all;
    };
    const auto parameters = filled(0, true), first = filled(1, true), second = filled(2, true);
    const auto p = filled(0, false), f = filled(1, false), s = filled(2, false);
    for (const auto* list : {&second, &s}) {  // squares are not negative
      for (const Tensor& t : *list) {
        const Tensor part = t.is_distributed() ? local(t) : t;
        for (int64_t i = 0; i < part.numel(); ++i)
          part.data<float>()[i] = std::abs(part.data<float>()[i]);
      }
    }
    const CommTrace trace;
    for (int64_t step = 1; step <= 3; ++step) {
      const double salt = 10 * static_cast<double>(step);
      const Tensor factor = step > 1 ? tensor(0.3, DType::f64) : Tensor();
      const AdamWOptions options{.lr = 0.1 / salt, .grad_factor = factor};
      adamw_(parameters, filled(salt, true), first, second, step, options);
      adamw_(p, filled(salt, false), f, s, step, options);
    }
    EXPECT_EQ(trace.count(), 0) << trace;
    for (size_t i = 0; i < p.size(); ++i) {
      expect_same(parameters[i], p[i], 0);
      expect_same(first[i], f[i], 0);
      expect_same(second[i], s[i], 0);
    }
  });
}

TEST(InPlace, WhatDoesNotFitIsRefusedBeforeAnythingIsWritten) {
  on_ranks(2, [](World&) {
    const Mesh m = Mesh::make({{"dp", 2}});
    const Layout whole = Layout::of(m, {R});
    const auto fresh = [&](double salt) { return distribute(numbers({4, 3}, salt), whole); };
    const Tensor p = fresh(0), first = fresh(1),
                 second = distribute(mul(numbers({4, 3}), numbers({4, 3})), whole);
    const Tensor before = copy(local(p));
    const Tensor partial = matmul(distribute(numbers({4, 8}), Layout::of(m, {S1})),
                                  distribute(numbers({8, 3}), Layout::of(m, {S0})));
    const std::string text =
        error_of<LayoutError>([&] { adamw_({p}, {partial}, {first}, {second}, 1, {}); });
    TESSERA_EXPECT_HOLDS(text, "redistribute(");
    TESSERA_EXPECT_HOLDS(text, "[adamw_]");
    EXPECT_THROW(adamw_({p}, {numbers({4, 3})}, {first}, {second}, 1, {}), LayoutError);
    expect_same(local(p), before, 0);
    // A parameter keeps its layout, whatever may be sent: a cut gradient is gathered, or refused.
    const AutoRedistribute wish;
    const Tensor cut = distribute(numbers({4, 3}, 5), Layout::of(m, {S0}));
    const Tensor q = copy(before), f = copy(local(first)), s = copy(local(second));
    try {
      adamw_({p}, {cut}, {first}, {second}, 1, {});
      adamw_({q}, {numbers({4, 3}, 5)}, {f}, {s}, 1, {});
    } catch (const LayoutError&) {
    }
    EXPECT_EQ(layout_of(p), whole);
    expect_same(p, q, 0);
    expect_same(first, f, 0);
  });
}

TEST(InPlace, AVariableThatAGraphNeedsIsNotWritten) {
  on_ranks(2, [](World&) {
    const Mesh m = Mesh::make({{"dp", 2}});
    Tensor w = variable(numbers({4, 3}), Layout::of(m, {S0}));
    const Tensor y = mul(w, w);
    {
      const NoGrad guard;
      scale_({w}, 2);
    }
    const Tensor seed = distribute(numbers({4, 3}), layout_of(y));
    EXPECT_THROW(backward(y, {.gradient = seed}), InPlaceError);
  });
}

}  // namespace
}  // namespace tessera
