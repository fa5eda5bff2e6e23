// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/step/forward_backward.h"

#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/train/step/run_parts.h"

#include <string>

namespace tessera::train {
namespace {

// Row r holds the ids r, r + 1, ...; every third has no targets in its second half.
Batch rows_from(int64_t first, int64_t count) {
  constexpr int64_t kLength = 8;
  Batch batch{full({count, kLength}, 0, DType::i64), full({count, kLength}, -100, DType::i64)};
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t t = 0; t < kLength; ++t) {
      batch.tokens.data<int64_t>()[r * kLength + t] = (first + r) * 5 + t;
      if ((first + r) % 3 != 0 || t < kLength / 2)
        batch.targets.data<int64_t>()[r * kLength + t] = (first + r) * 5 + t + 1;
    }
  }
  return batch;
}

struct Result {
  double loss = 0;
  std::vector<std::vector<double>> gradients;
};

// Six rows, so many at once on each rank.
Result step(int ranks, int rows, std::string* order = nullptr) {
  const Config config = parse_config(
      joined(tiny_model(), {"--training.dtype", "float64", "--training.mixed_precision_param",
                            "float64", "--training.seq_len", "8", "--training.global_batch_size",
                            "6", "--training.local_batch_size", std::to_string(rows)}));
  Result result;
  const auto on_rank = [&](World& world) {
    RunParts parts = make_run_parts(config, kCpu, nullptr, rows_from);
    Feed& feed = *parts.feed;
    const StepInput input = feed.next(unwatched());
    const Tensor counts = summed_counts(input, parts.mesh, feed.share(), kCpu);
    const Around around = [&](const StepPart& part, const std::function<void()>& run) {
      if (order) *order += concat(part.text(), ' ');
      run();
    };
    StepOutput output = forward_backward(*parts.model, {input.batches, 0, feed.rows_at_once()},
                                         loss_scale(counts, DType::f64), around);
    EXPECT_EQ(output.values.names(), std::vector<std::string>{"loss"});
    EXPECT_FALSE(output.load.defined());
    const double loss = output.values.read()[0].second;
    for (const Tensor& p : parts.parameters) {
      const std::vector<double> whole = full_tensor(p.grad()).values();
      if (world.rank() == 0) result.gradients.push_back(whole);
    }
    if (world.rank() == 0) result.loss = loss;
  };
  run_ranks(ranks, on_rank, world_options(config));
  return result;
}

void expect_near(const Result& a, const Result& b) {
  EXPECT_NEAR(a.loss, b.loss, 1e-12 * b.loss);
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (size_t p = 0; p < a.gradients.size(); ++p) {
    ASSERT_EQ(a.gradients[p].size(), b.gradients[p].size());
    for (size_t i = 0; i < a.gradients[p].size(); ++i)
      ASSERT_NEAR(a.gradients[p][i], b.gradients[p][i], 1e-13) << p << ' ' << i;
  }
}

TEST(ForwardBackward, MicroBatchesAddUpToTheStepWhateverTheirTargets) {
  const Result whole = step(1, 6);
  EXPECT_GT(whole.loss, 0);
  expect_near(step(1, 2), whole);
  expect_near(step(1, 1), whole);
  expect_near(step(2, 1), whole);
  expect_near(step(2, 3), whole);
}

TEST(ForwardBackward, EachPassIsWatched) {
  std::string order;
  (void)step(1, 3, &order);
  EXPECT_EQ(order, "forward backward forward backward ");
}

}  // namespace
}  // namespace tessera::train
