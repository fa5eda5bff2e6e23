// SPDX-License-Identifier: Apache-2.0
// Mixed collectives and messages on random subgroups, some waited for at once, some later, some not
// at all, with random yields: what the thread sanitizer looks at. Exact integers, so that every sum
// is checked.
#include "tessera/dist/launch/threads_impl.h"
#include "tessera/tests/support/collectives.h"

#include <gtest/gtest.h>

#include <deque>
#include <thread>

namespace tessera {
namespace {

#ifdef __SANITIZE_THREAD__
constexpr int kCollectives = 10'000;
#else
constexpr int kCollectives = 2'000;
#endif

struct Started {
  Ref<Work> work;
  Tensor x;
  std::vector<int> ranks;
  uint64_t salt;
};

void mixed(World& w, uint64_t seed, int collectives) {
  constexpr int kGroups = 6;
  test::Dice shared(seed), own(seed * 100 + static_cast<uint64_t>(w.rank()));
  const auto pause = [&] {
    if (own.below(3) == 0) std::this_thread::yield();
    if (own.below(500) == 0) std::this_thread::sleep_for(std::chrono::microseconds(own.below(300)));
  };
  std::vector<Ref<ProcessGroup>> groups(kGroups);
  std::vector<std::vector<int>> members(kGroups);
  std::deque<Started> later;
  const auto finish = [&](const Started& s) {
    s.work->wait();
    for (int64_t i = 0; i < s.x.numel(); i += 97) {
      ASSERT_EQ(s.x.data<int64_t>()[i], test::reduced<int64_t>(s.salt, s.ranks, ReduceOp::sum, i));
    }
  };
  for (int step = 0; step < collectives; ++step) {
    const auto salt = static_cast<uint64_t>(step) + seed;
    const auto g = static_cast<size_t>(shared.below(kGroups));
    const bool renew = members[g].empty() || shared.below(40) == 0;
    if (renew) {
      std::vector<int> all(static_cast<size_t>(w.size()));
      for (int r = 0; r < w.size(); ++r) all[static_cast<size_t>(r)] = r;
      shared.shuffle(all);
      all.resize(static_cast<size_t>(1 + shared.below(w.size())));
      members[g] = all;
    }
    const int64_t what = shared.below(8),
                  size = shared.below(20) == 0 ? 40'000 + shared.below(9) : shared.below(300);
    const int64_t when = shared.below(3), root_draw = shared.below(1'000'000);
    const auto& ranks = members[g];
    const auto place = std::find(ranks.begin(), ranks.end(), w.rank());
    if (place == ranks.end()) continue;
    if (renew) groups[g] = w.group().subgroup(ranks, concat("random ", g));
    ProcessGroup& group = *groups[g];
    const int n = group.size(), root = static_cast<int>(root_draw % n);
    pause();
    const Tensor x = empty({size}, DType::i64), wide = empty({size * n}, DType::i64);
    test::fill<int64_t>(x, salt, w.rank());
    switch (what) {
      case 0: group.barrier()->wait(); break;
      case 1:
        group.all_gather(x, wide)->wait();
        for (int64_t i = 0; i < wide.numel(); i += 31) {
          ASSERT_EQ(wide.data<int64_t>()[i],
                    test::value<int64_t>(salt, ranks[static_cast<size_t>(i / size)], i % size));
        }
        break;
      case 2:
        test::fill<int64_t>(wide, salt, w.rank());
        group.reduce_scatter(wide, x)->wait();
        for (int64_t i = 0; i < size; i += 31) {
          ASSERT_EQ(x.data<int64_t>()[i],
                    test::reduced<int64_t>(salt, ranks, ReduceOp::sum, group.rank() * size + i));
        }
        break;
      case 3:
        group.broadcast(x, root)->wait();
        for (int64_t i = 0; i < size; i += 31) {
          ASSERT_EQ(x.data<int64_t>()[i],
                    test::value<int64_t>(salt, ranks[static_cast<size_t>(root)], i));
        }
        break;
      case 4: {
        const int next = (group.rank() + 1) % n, before = (group.rank() + n - 1) % n;
        const Tensor y = empty({size}, DType::i64);
        const auto sent = group.send(x, next);
        pause();
        group.recv(y, before)->wait();
        sent->wait();
        for (int64_t i = 0; i < size; i += 31) {
          ASSERT_EQ(y.data<int64_t>()[i],
                    test::value<int64_t>(salt, ranks[static_cast<size_t>(before)], i));
        }
        break;
      }
      default: {
        Started s{group.all_reduce(x), x, ranks, salt};
        if (when == 0) finish(s);
        else if (when == 1) later.push_back(std::move(s));
      }
    }
    pause();
    while (later.size() > 5) {
      finish(later.front());
      later.pop_front();
    }
  }
  for (const Started& s : later) finish(s);
}

TEST(Stress, MixedCollectivesOnRandomSubgroups) {
  for (const PayloadMode mode : {PayloadMode::direct, PayloadMode::staged}) {
    WorldOptions options;
    options.threads = 1;
    options.progress = ProgressThread::never;
    run_threads(
        4, [](World& w) { mixed(w, 2024, kCollectives / 2); }, options, mode);
  }
}

TEST(Stress, WithProgressThreads) {
  for (const PayloadMode mode : {PayloadMode::direct, PayloadMode::staged}) {
    WorldOptions options;
    options.threads = 1;
    options.progress = ProgressThread::always;
    run_threads(
        3, [](World& w) { mixed(w, 7, kCollectives / 10); }, options, mode);
  }
}

}  // namespace
}  // namespace tessera
