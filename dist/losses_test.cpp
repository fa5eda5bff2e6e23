// SPDX-License-Identifier: Apache-2.0
// Means of losses over classes on sharded rows: those of all rows, with one reduction of one
// number, however unevenly the ignored targets lie.
#include "tessera/kernels/cross_entropy/losses.h"

#include "tessera/kernels/softmax/softmax.h"
#include "tessera/tests/support/trials.h"

namespace tessera {
namespace {

using namespace trial;
using test::on_ranks;

// 5 rows: on 4 ranks the last has none, and a rank may have ignored ones alone.
const std::vector<double> kTargets{-100, -100, 3, -100, 1};

TEST(LossesOnRanks, TheMeanIsThatOfAllRows) {
  for (const int ranks : {2, 4}) {
    on_ranks(ranks, [ranks](World&) {
      const Mesh m = Mesh::make({{"dp", ranks}});
      const Layout rows = Layout::of(m, {Shard(0)});
      const Tensor x = numbers({5, 6}), t = from_values(kTargets, {5}, DType::i64),
                   classes = tensor({1, 2, 1, 4, 3, 5}, DType::f64);
      for (const Tensor& weight : {Tensor(), classes}) {
        const Tensor whole = variable(x), cut = variable(x, rows);
        const Tensor want =
            cross_entropy(whole, t, Reduction::mean, {.label_smoothing = 0.1, .weight = weight});
        backward(want);
        const CommTrace trace;
        const Tensor mean = cross_entropy(
            cut, distribute(t, rows), Reduction::mean,
            {.label_smoothing = 0.1,
             .weight = weight.defined() ? distribute(weight, Layout::replicated(m)) : weight});
        EXPECT_EQ(trace.count(), 1) << trace;
        expect_same(mean, want);
        backward(mean);
        expect_same(cut.grad(), whole.grad());
      }
    });
  }
}

TEST(LossesOnRanks, TheMeanWhereClassesAreCutToo) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"dp", 2}, {"tp", 2}});
    const Tensor x = numbers({5, 6}), t = from_values(kTargets, {5}, DType::i64);
    const Tensor whole = variable(x), cut = variable(x, Layout::of(m, {Shard(0), Shard(1)}));
    const Tensor want = cross_entropy(whole, t, Reduction::mean);
    const Tensor mean =
        cross_entropy(cut, distribute(t, Layout::of(m, {Shard(0), Replicate()})), Reduction::mean);
    expect_same(mean, want);
    backward(want);
    backward(mean);
    expect_same(cut.grad(), whole.grad());
  });
}

TEST(LossesOnRanks, OfLogProbabilitiesToo) {
  on_ranks(2, [](World&) {
    const Mesh m = Mesh::make({{"dp", 2}});
    const Layout rows = Layout::of(m, {Shard(0)});
    const Tensor x = numbers({5, 6}), t = from_values(kTargets, {5}, DType::i64);
    const Tensor whole = variable(x), cut = variable(x, rows);
    const Tensor want = nll_loss(log_softmax(whole, -1), t);
    const Tensor mean = nll_loss(log_softmax(cut, -1), distribute(t, rows));
    expect_same(mean, want);
    backward(want);
    backward(mean);
    expect_same(cut.grad(), whole.grad());
  });
}

TEST(LossesOnRanks, NoTargetAtAllIsNotANumber) {
  on_ranks(2, [](World&) {
    const Layout rows = Layout::of(Mesh::make({{"dp", 2}}), {Shard(0)});
    const Tensor none = full({4}, -100, DType::i64, rows);
    const Tensor mean = cross_entropy(distribute(numbers({4, 3}), rows), none, Reduction::mean);
    EXPECT_TRUE(std::isnan(full_tensor(mean).item()));
  });
}

}  // namespace
}  // namespace tessera
