// SPDX-License-Identifier: Apache-2.0
// The head with its loss on ranks: tokens cut over one axis, the vocabulary over the other, and the
// gradients that its forward pass made, against one rank.
#include "tessera/kernels/linear_cross_entropy/linear_cross_entropy.h"

#include "tessera/tests/support/trials.h"

namespace tessera {
namespace {

using namespace trial;
using test::on_ranks;

TEST(LinearCrossEntropyOnRanks, LossAndGradientsAreThoseOfOneRank) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"dp", 2}, {"tp", 2}});
    const Placement R = Replicate(), S0 = Shard(0);
    const Tensor h = numbers({3, 3, 6}), w = numbers({7, 6}, 1);
    const Tensor t = tensor({{3, 6, -100}, {-100, 0, 2}, {-100, -100, 5}}, DType::i64);
    for (const CrossEntropyOptions& options :
         {CrossEntropyOptions{}, CrossEntropyOptions{.label_smoothing = 0.1, .z_loss = 0.01}}) {
      Tensor plain_h = variable(h), plain_w = variable(w);
      const auto [want, want_count] = linear_cross_entropy(plain_h, plain_w, t, options);
      backward(want);
      for (const auto& [dp, tp] : {std::pair{R, R}, {S0, R}, {R, S0}, {S0, S0}}) {
        Tensor hidden = variable(h, Layout::of(m, {dp, R})),
               weight = variable(w, Layout::of(m, {R, tp}));
        const CommTrace trace;
        const auto [sum, count] =
            linear_cross_entropy(hidden, weight, distribute(t, Layout::of(m, {dp, R})), options);
        // Maxima, sums and the gradient of hidden, where the vocabulary is cut.
        EXPECT_EQ(trace.count(), tp == S0 ? 3 : 0) << trace;
        expect_same(sum, want);
        EXPECT_EQ(full_tensor(count).item(), 5);
        backward(sum);
        expect_same(hidden.grad(), plain_h.grad());
        expect_same(weight.grad(), plain_w.grad());
      }
    }
  });
}

// 1e4 less the maximum of its own piece, then less that of the row.
TEST(LinearCrossEntropyOnRanks, LargeLogitsKeepTheDigitsOfSmallLosses) {
  on_ranks(2, [](World&) {
    const Mesh m = Mesh::make({{"tp", 2}});
    const Tensor x = tensor({{1e4, 0, 1e4 - 5, 0}, {1e4 - 5, 0, 1e4, -INFINITY}}),
                 weight = tensor({2, 1, 1, 1});
    const Tensor t = distribute(tensor({0, 2}, DType::i64), Layout::of(m, {Replicate()}));
    const Tensor cut = distribute(x, Layout::of(m, {Shard(1)}));
    EXPECT_NEAR(full_tensor(cross_entropy(cut, t).sum).item(), 2 * 0.0067153485, 2e-9);
    const Tensor weights = distribute(weight, Layout::of(m, {Shard(0)}));
    EXPECT_NEAR(full_tensor(cross_entropy(cut, t, {.weight = weights}).sum).item(),
                3 * 0.0067153485, 3e-9);
    Tensor hidden = variable(tensor({{1, 0}, {0, 1}}), Layout::of(m, {Replicate()}));
    const Tensor head = tensor({{1e4, 1e4 - 5}, {0, 0}, {1e4 - 5, 1e4}, {0, 0}});
    Tensor piece = variable(head, Layout::of(m, {Shard(0)}));
    const auto [sum, count] = linear_cross_entropy(hidden, piece, t);
    EXPECT_NEAR(full_tensor(sum).item(), 2 * 0.0067153485, 2e-9);
    backward(sum);
    const auto slope = full_tensor(piece.grad()).values();  // softmax less the target
    EXPECT_NEAR(slope[0], -0.0066928509, 6e-8);             // one is subtracted in f32
    EXPECT_NEAR(slope[1], 0.0066928509, 2e-9);
  });
}

}  // namespace
}  // namespace tessera
