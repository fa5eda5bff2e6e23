// SPDX-License-Identifier: Apache-2.0
// run_ranks and World: who runs where, and what becomes of errors.
#include "tessera/dist/launch/run.h"
#include "tessera/dist/launch/threads_impl.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(World, RanksKnowTheirPlace) {
  std::atomic<int> seen{0};
  run_ranks(3, [&](World& w) {
    EXPECT_EQ(&World::current(), &w);
    EXPECT_EQ(w.size(), 3);
    EXPECT_EQ(w.local_rank(), w.rank());
    EXPECT_EQ(w.group().backend(), "threads");
    seen += 1 << (4 * w.rank());
  });
  EXPECT_EQ(seen, 0x111);
  EXPECT_THROW((void)World::current(), UsageError);
}

TEST(World, FirstErrorIsRethrownAndOthersGetPeerFailed) {
  std::atomic<int> peers{0};
  try {
    run_ranks(4, [&](World& w) {
      if (w.rank() == 2) fail<DataError>("here", "no data");
      const Tensor x = from_values({1, 2}, {2});
      try {
        w.group().all_reduce(x)->wait();
      } catch (const PeerFailed& e) {
        EXPECT_NE(std::string(e.what()).find("rank 2 failed: [here] no data"), std::string::npos)
            << e.what();
        ++peers;
        throw;
      }
    });
    FAIL();
  } catch (const DataError&) {
  }
  EXPECT_EQ(peers, 3);
}

TEST(World, SumsOverRanks) {
  for (const PayloadMode mode : {PayloadMode::direct, PayloadMode::staged}) {
    for (int n = 1; n <= 5; ++n) {
      run_threads(
          n,
          [&](World& w) {
            for (int64_t size : {0, 1, 7, 5000, 300'001}) {
              const Tensor x = empty({size});
              std::fill_n(x.data<float>(), size, static_cast<float>(w.rank() + 1));
              w.group().all_reduce(x)->wait();
              for (int64_t i = 0; i < size; ++i)
                ASSERT_EQ(x.data<float>()[i], static_cast<float>(n * (n + 1) / 2));
            }
          },
          {}, mode);
    }
  }
}

TEST(World, FakeWorldHasShapes) {
  run_fake(64, 5, [](World& w) {
    EXPECT_EQ(w.size(), 64);
    const Tensor in = from_values({1, 2}, {2}), out = empty({128});
    w.group().all_gather(in, out)->wait();
    EXPECT_EQ(out.values()[127], 2);
    const auto sub = w.group().subgroup(std::vector<int>{5, 9}, "pair");
    EXPECT_EQ(sub->size(), 2);
  });
}

TEST(World, AFakeWorldHasItsRank) {
  for (const auto& [size, rank] : {std::pair{0, 0}, {4, 4}, {4, -1}}) {
    EXPECT_EQ(test::error_of(
                  [&, size = size, rank = rank] { run_fake(size, rank, [](World&) { FAIL(); }); }),
              concat("[run_fake] rank ", rank, " of a world of ", size,
                     ": expected 0 <= rank < world size"));
  }
}

// Nobody waits for the work, so the end of the world is where its error comes out.
TEST(World, AnErrorOfDroppedWorkIsNotLost) {
  EXPECT_THROW(run_ranks(2,
                         [](World& world) {
                           const Tensor x = empty({world.rank() == 0 ? 100000 : 50000});
                           (void)world.group().all_reduce(x);
                         }),
               CollectiveMismatch);
}

}  // namespace
}  // namespace tessera
