// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/step/feed.h"

#include "tessera/dist/launch/run.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/step/run_parts.h"

#include <utility>

namespace tessera::train {
namespace {

using Asked = std::vector<std::pair<int64_t, int64_t>>;  // first row, number of rows

// A run of two micro-batches of three rows of seven tokens on each of `ranks`.
class FeedTest : public TinyRunTest {
 protected:
  static Config config_of(int ranks) {
    return parse_config(
        joined(tiny_model(), {"--training.local_batch_size", "3", "--training.seq_len", "7",
                              "--training.global_batch_size", std::to_string(6 * ranks)}));
  }
  // Calls use(parts, asked) on each rank; the source notes what it is asked for, and fails for row
  // `bad`.
  template <class F> static void with_feed(int ranks, F&& use, int64_t bad = -1) {
    const Config config = config_of(ranks);
    const auto on_rank = [&](World& world) {
      Asked asked;
      const auto source = [&](int64_t first, int64_t count) -> Batch {
        asked.emplace_back(first, count);
        if (first == bad) fail<DataError>("test", "row ", bad, " is bad");
        Batch batch{full({count, 7}, 1, DType::i64), full({count, 7}, 2, DType::i64)};
        batch.targets.data<int64_t>()[0] = -100;
        return batch;
      };
      const RunParts parts = make_run_parts(config, kCpu, nullptr, source);
      use(parts, asked, world.rank());
    };
    run_ranks(ranks, on_rank, world_options(config));
  }
};

TEST_F(FeedTest, EachRankReadsItsRowsOfEachMicroBatch) {
  with_feed(2, [](const RunParts& parts, Asked& asked, int rank) {
    Feed& feed = *parts.feed;
    EXPECT_EQ(feed.rows_at_once(), 6);
    EXPECT_EQ(feed.rows_per_step(), 12);
    EXPECT_EQ(feed.tokens_per_step(), 84);
    const StepInput input = feed.next(unwatched());
    EXPECT_EQ(asked, (Asked{{3 * rank, 3}, {6 + 3 * rank, 3}}));
    EXPECT_EQ(input.batches.size(), 2u);
    EXPECT_EQ(input.targets, 2 * (3 * 7 - 1));
    EXPECT_EQ(input.tokens, 2 * 3 * 7);
    const Tensor counts = summed_counts(input, parts.mesh, feed.share(), kCpu);  // (3)
    EXPECT_EQ(counts.values(),
              (std::vector<double>{2 * input.targets, 2 * input.tokens, 2 * input.flops}));
  });
}

TEST_F(FeedTest, WhatWasMadeAheadIsUsedForItsRowsAlone) {
  with_feed(1, [](const RunParts& parts, Asked& asked, int) {
    Feed& feed = *parts.feed;
    (void)feed.next(unwatched());
    feed.look_ahead(unwatched());
    EXPECT_EQ(asked, (Asked{{0, 3}, {3, 3}, {6, 3}, {9, 3}}));
    feed.seek(6);
    EXPECT_EQ(feed.next(unwatched()).first, 6);
    EXPECT_EQ(asked.size(), 4u);
    feed.look_ahead(unwatched());
    feed.seek(0);  // after a step that was not finite
    EXPECT_EQ(feed.next(unwatched()).first, 0);
    EXPECT_EQ(asked.back(), (std::pair<int64_t, int64_t>{3, 3}));
  });
}

TEST_F(FeedTest, AnErrorOfLookingAheadIsThatOfItsStep) {
  const auto use = [](const RunParts& parts, Asked&, int) {
    Feed& feed = *parts.feed;
    (void)feed.next(unwatched());
    feed.look_ahead(unwatched());
    EXPECT_EQ(feed.rows(), 0);
    feed.seek(6);
    TESSERA_EXPECT_HOLDS(test::error_of<DataError>([&] { (void)feed.next(unwatched()); }),
                         "row 9 is bad");
  };
  with_feed(1, use, 9);
}

}  // namespace
}  // namespace tessera::train
