// SPDX-License-Identifier: Apache-2.0
// Bytes under way: what is released, dropped, read or written while a collective still uses it,
// what is started on the result of another collective, and refills that keep the version.
#include "tessera/autograd/autograd.h"
#include "tessera/dist/launch/threads_impl.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/collectives.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/ranks.h"

#include <thread>

namespace tessera {
namespace {

constexpr int64_t kLarge = 100'003;  // beyond what fits into an announcement

class UnderWay : public testing::TestWithParam<PayloadMode> {
 protected:
  static void run(int n, const test::RankFunction& fn, ProgressThread progress) {
    WorldOptions options;
    options.progress = progress;
    options.threads = 1;
    run_threads(n, fn, options, GetParam());
  }
  // Without and with a thread that ends work at any moment.
  static void on(int n, const test::RankFunction& fn) {
    run(n, fn, ProgressThread::never);
    run(n, fn, ProgressThread::always);
  }
};

// A rank whose peers come later: they are told to come by a message.
void hold(World& w) {
  if (w.rank() > 0) w.group().recv(empty({1}), 0, 9)->wait();
}
void let_go(World& w) {
  if (w.rank() > 0) return;
  for (int p = 1; p < w.size(); ++p) w.group().send(zeros({1}), p, 9)->wait();
}

Tensor filled(int64_t n, int rank) {
  const Tensor x = empty({n});
  test::fill<float>(x, 7, rank);
  return x;
}
void expect_gathered(const Tensor& out, int ranks, int64_t each) {
  for (int p = 0; p < ranks; ++p) {
    for (int64_t i = 0; i < each; i += 13) {
      ASSERT_TRUE(test::same(out.data<float>()[p * each + i], test::value<float>(7, p, i)))
          << "rank " << p << " element " << i;
    }
  }
}

TEST_P(UnderWay, ReleasedAndDroppedBytesStayUntilTheEnd) {
  on(2, [](World& w) {
    for (const bool released : {true, false}) {
      hold(w);
      Tensor x = filled(kLarge, w.rank());
      const Tensor out = empty({2 * kLarge});
      (void)w.group().all_gather(x, out);
      if (released) x.storage().release_bytes();
      x = {};
      const Tensor other = full({kLarge}, -1);  // would take the same block
      let_go(w);
      expect_gathered(out, 2, kLarge);
    }
  });
}

TEST_P(UnderWay, AWriteIntoReleasedBytesHitsNothing) {
  on(2, [](World& w) {
    hold(w);
    const Tensor x = filled(kLarge, w.rank()), out = empty({2 * kLarge});
    const auto work = w.group().all_gather(x, out);
    out.storage().release_bytes();
    const Tensor other = full({2 * kLarge}, -1);
    let_go(w);
    work->wait();
    EXPECT_TRUE(all(other == -1).item() != 0);
    out.storage().regain_bytes();
    w.group().all_gather(x, out);
    expect_gathered(out, 2, kLarge);
  });
}

TEST_P(UnderWay, OpsWaitForWhatTheyReadAndWrite) {
  on(2, [](World& w) {
    hold(w);
    const Tensor x = filled(kLarge, w.rank()), out = empty({2 * kLarge});
    (void)w.group().all_gather(x, out);
    let_go(w);
    assign_(x, zeros({kLarge}));  // waits: others may still read x
    const Tensor twice = out * 1;
    expect_gathered(twice, 2, kLarge);
    EXPECT_EQ(sum(x).item(), 0);
    test::fill<float>(x, 7, w.rank());
    (void)w.group().all_gather(x, out);
    x.data<float>()[0] = 5;  // and so does a pointer
    expect_gathered(out, 2, kLarge);
  });
}

// A read beside another read, and the rest of the buffer, wait for nothing.
TEST_P(UnderWay, OnlyWhatIsInTheWayIsWaitedFor) {
  on(2, [](World& w) {
    const int other = 1 - w.rank();
    const Tensor flat = zeros({2 * kLarge}), mine = alias(flat, {kLarge}, {1}, 0),
                 theirs = alias(flat, {kLarge}, {1}, kLarge);
    const auto received = w.group().recv(theirs, other);
    test::fill<float>(mine, 7, w.rank());  // waiting for `theirs` here would never end
    const auto sent = w.group().send(mine, other);
    const Tensor seen = mine * 1;
    EXPECT_TRUE(test::same(seen.data<float>()[5], test::value<float>(7, w.rank(), 5)));
    EXPECT_TRUE(test::same(theirs.data<float>()[5], test::value<float>(7, other, 5)));
    EXPECT_TRUE(received->test());
    sent->wait();
  });
}

TEST_P(UnderWay, ACollectiveOnBytesUnderWayStartsAfterThem) {
  on(4, [](World& w) {
    const auto rows = w.group().split(w.rank() / 2, 0, "rows"),
               columns = w.group().split(w.rank() % 2, 0, "columns");
    for (const int64_t n : {10L, kLarge + 1}) {
      const Tensor in = filled(n, w.rank()), part = empty({n / 2}), all = empty({n});
      (void)rows->reduce_scatter(in, part);
      (void)columns->all_reduce(part);
      const auto last = rows->all_gather(part, all);
      if (w.rank() % 2) {
        last->wait();
      } else {
        while (!last->test()) std::this_thread::yield();
      }
      const Tensor expected = filled(n, w.rank());
      w.group().all_reduce(expected)->wait();
      for (int64_t i = 0; i < n; ++i)
        ASSERT_TRUE(test::same(all.data<float>()[i], expected.data<float>()[i])) << i;
    }
  });
}

TEST_P(UnderWay, AnErrorReachesWhoNeedsTheBytes) {
  bool thrown = false;
  try {
    run(
        2,
        [&](World& w) {
          if (w.rank() == 1) return;  // never joins
          const Tensor x = filled(kLarge, 0), out = empty({2 * kLarge});
          (void)w.group().all_gather(x, out);
          try {
            (void)(out * 2);
          } catch (const PeerFailed&) {
            thrown = true;
          }
        },
        ProgressThread::never);
  } catch (const PeerFailed&) {
  }
  EXPECT_TRUE(thrown);
}

// A tensor that threads share: no other than the rank that started the operation can end it.
TEST_P(UnderWay, AnotherThreadWaitsForTheBytesUntilTheDeadline) {
  std::string error;
  const auto rank = [&](World& w) {
    hold(w);
    const Tensor x = zeros({kLarge});
    w.group().set_timeout(std::chrono::milliseconds(20));
    const auto received = w.group().recv(x, 1);
    std::thread([&] {
      const Session session;
      error = test::error_of<CollectiveTimeout>([&] { x.data<float>()[0] = 1; });
    }).join();
    received->wait();
  };
  EXPECT_THROW(run(2, rank, ProgressThread::never), CollectiveTimeout);
  EXPECT_EQ(
      error,
      "[process_group] another rank's recv f32[100003] from 1 (tag 0) still uses the bytes of "
      "a shared tensor after 20 ms");
}

// A regathered parameter: what autograd saved of it stays valid, and another write does not.
TEST_P(UnderWay, ARefillByACollectiveKeepsTheVersion) {
  on(2, [](World& w) {
    const Tensor x = normal({3, 4}, {1, 1}).set_requires_grad();
    const Tensor shard = normal({2, 4}, {1, 2 + static_cast<uint64_t>(w.rank())});
    const Tensor weight = zeros({4, 4});
    w.group().all_gather(shard, weight)->wait();
    const Tensor expected = matmul(ones({3, 4}), weight);
    const uint32_t version = weight.storage().version();
    for (const bool refills : {true, false}) {
      const Tensor y = linear(x, weight);
      weight.storage().release_bytes();
      EXPECT_THROW((void)weight.values(), StorageError);
      if (refills) {
        const Storage::Refill refill(weight.storage());
        (void)w.group().all_gather(shard, weight);
        EXPECT_EQ(weight.storage().version(), version);
      } else {
        weight.storage().regain_bytes();
        (void)w.group().all_gather(shard, weight);
        EXPECT_EQ(weight.storage().version(), version + 1);
      }
      if (refills) {
        backward(sum(y));
        EXPECT_EQ(x.grad().values(), expected.values());
      } else {
        EXPECT_THROW(backward(sum(y)), InPlaceError);
      }
    }
    (void)w.group().all_gather(shard, weight);
    EXPECT_EQ(weight.storage().version(), version + 2);
  });
}

// A leaf keeps a gradient that a reduction still writes; a sum of two waits.
TEST_P(UnderWay, ALeafTakesAGradientUnderWay) {
  on(2, [](World& w) {
    const Tensor a = zeros({kLarge}).set_requires_grad(), b = zeros({kLarge}).set_requires_grad();
    const void* buffer = nullptr;
    bool waited = true;
    const Function reduced{"reduced",
                           [](FunctionContext&, Tensors in) {
                             return TensorList{in[0] * 1, in[1] * 1};
                           },
                           [&](FunctionContext&, const Grads&) {
                             const Tensor flat = empty({2 * kLarge});
                             test::fill<float>(flat, 7, w.rank());
                             buffer = flat.raw_data();
                             (void)w.group().all_reduce(flat);
                             return Grads{carve(flat, 0, {kLarge}), carve(flat, kLarge, {kLarge})};
                           }};
    hold(w);
    backward(sum(apply(reduced, {a, b})[0]));
    if (w.rank() == 0) {
      waited = a.grad().storage().ready();
      EXPECT_FALSE(waited);
    }
    let_go(w);
    EXPECT_EQ(a.grad().raw_data(), buffer);
    EXPECT_EQ(b.grad().raw_data(), static_cast<const float*>(buffer) + kLarge);
    const auto expect = [&](double times) {
      for (const int64_t i : {int64_t{0}, int64_t{77}, kLarge - 1}) {
        const std::vector<int> ranks{0, 1};
        EXPECT_EQ(a.grad().data<float>()[i],
                  times * test::reduced<float>(7, ranks, ReduceOp::sum, i));
        EXPECT_EQ(b.grad().data<float>()[i],
                  times * test::reduced<float>(7, ranks, ReduceOp::sum, kLarge + i));
      }
    };
    expect(1);
    backward(sum(apply(reduced, {a, b})[0]));
    expect(2);
    scale_({a.grad()}, 0);  // in place, through the view
    EXPECT_EQ(b.grad().data<float>()[1],
              2 * test::reduced<float>(7, std::vector<int>{0, 1}, ReduceOp::sum, kLarge + 1));
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, UnderWay,
                         testing::Values(PayloadMode::direct, PayloadMode::staged));

}  // namespace
}  // namespace tessera
