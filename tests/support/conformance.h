// SPDX-License-Identifier: Apache-2.0
// The conformance suite: every collective, even and with counts, every dtype, operation and size,
// over every back end of the program that includes it, against brute force: bit for bit, but for
// the sums of devices.
#pragma once

#include "tessera/tests/support/collectives.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/ranks.h"

#include <numeric>

namespace tessera::test {

struct Backend {
  const char* name;
  void (*run)(int n, const RankFunction& fn);
  int (*most_ranks)() = [] { return 8; };
  Device (*device)(int rank) = [](int) { return kCpu; };
  bool exact = true;  ///< sums have the bits of the tree
};
inline void PrintTo(const Backend& b, std::ostream* out) { *out << b.name; }

inline constexpr ReduceOp kOps[]{ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min};
inline constexpr int kSizes[]{1, 2, 3, 4, 5, 8};

template <class... T, class F> void for_types(F&& f) { (f.template operator()<T>(), ...); }

// f8 only travels: no device adds it up.
inline bool allowed(ReduceOp op, DType t, const Backend& backend) {
  if (!backend.exact && item_size(t) == 1 && is_floating(t)) return false;
  return op == ReduceOp::avg ? is_floating(t) : op == ReduceOp::sum ? t != DType::bool_ : true;
}

// One collective of one rank on tensors of T, checked element by element.
template <class T> class Case {
 public:
  Case(const Backend& backend, ProcessGroup& group, uint64_t salt, bool with_counts)
      : backend_(backend),
        group_(group),
        salt_(salt),
        ranks_(group.ranks().begin(), group.ranks().end()) {
    n_ = group.size();
    me_ = group.rank();
    with_counts_ = with_counts;
    device_ = backend.device(world());
  }

  void all_reduce(int64_t size, ReduceOp op) {
    const Guarded x(size, dtype_of<T>, device_);
    fill<T>(x.tensor(), salt_, world());
    group_.all_reduce(x.tensor(), op)->wait();
    check(
        x, [&](int64_t i) { return reduced<T>(salt_, ranks_, op, i); }, "all_reduce", op);
  }

  void reduce(int64_t size, ReduceOp op, int root) {
    const Guarded x(size, dtype_of<T>, device_);
    fill<T>(x.tensor(), salt_, world());
    group_.reduce(x.tensor(), root, op)->wait();
    check(
        x,
        [&](int64_t i) {
          return me_ == root ? reduced<T>(salt_, ranks_, op, i) : value<T>(salt_, world(), i);
        },
        "reduce", op);
  }

  void broadcast(int64_t size, int root) {
    const Guarded x(size, dtype_of<T>, device_);
    if (me_ == root) fill<T>(x.tensor(), salt_, world());
    group_.broadcast(x.tensor(), root)->wait();
    check(
        x, [&](int64_t i) { return value<T>(salt_, at(root), i); }, "broadcast");
  }

  void all_gather(int64_t size, bool in_place) {
    const Counts counts = member_counts(size);
    const Guarded out(total(counts), dtype_of<T>, device_),
        apart(counts[me()], dtype_of<T>, device_);
    const Tensor in = in_place ? alias(out.tensor(), {counts[me()]}, {1},
                                       out.tensor().offset() + before(counts, me_))
                               : apart.tensor();
    fill<T>(in, salt_, world());
    group_.all_gather(in, out.tensor(), given(counts))->wait();
    check(out, joined(counts), "all_gather");
  }

  void reduce_scatter(int64_t size, ReduceOp op, bool in_place) {
    const Counts counts = member_counts(size);
    const Guarded in(total(counts), dtype_of<T>, device_),
        apart(counts[me()], dtype_of<T>, device_);
    fill<T>(in.tensor(), salt_, world());
    const int64_t first = before(counts, me_);
    const Tensor out = in_place
                           ? alias(in.tensor(), {counts[me()]}, {1}, in.tensor().offset() + first)
                           : apart.tensor();
    group_.reduce_scatter(in.tensor(), out, op, given(counts))->wait();
    check_tensor(
        out, [&](int64_t i) { return reduced<T>(salt_, ranks_, op, first + i); }, "reduce_scatter",
        op);
    EXPECT_TRUE(in.guards_stand() && apart.guards_stand());
  }

  void all_to_all(int64_t size) {
    // Rank a sends size + a + 2b elements to rank b, or none where (a + b) % 3 == 1.
    const auto pair = [&](int a, int b) {
      return !with_counts_ ? size : (a + b) % 3 == 1 ? 0 : size + a + 2 * b;
    };
    Counts to, from;
    for (int p = 0; p < n_; ++p) to.push_back(pair(me_, p)), from.push_back(pair(p, me_));
    const Guarded in(total(to), dtype_of<T>, device_), out(total(from), dtype_of<T>, device_);
    fill<T>(in.tensor(), salt_, world());
    group_.all_to_all(in.tensor(), out.tensor(), given(to), given(from))->wait();
    std::vector<T> expected;
    for (int p = 0; p < n_; ++p) {
      int64_t start = 0;
      for (int q = 0; q < me_; ++q) start += pair(p, q);
      for (int64_t i = 0; i < pair(p, me_); ++i)
        expected.push_back(value<T>(salt_, at(p), start + i));
    }
    check(
        out, [&](int64_t i) { return static_cast<T>(expected[static_cast<size_t>(i)]); },
        "all_to_all");
  }

  void gather(int64_t size, int root) {
    const Counts counts = member_counts(size);
    const Guarded in(counts[me()], dtype_of<T>, device_),
        out(me_ == root ? total(counts) : 0, dtype_of<T>, device_);
    fill<T>(in.tensor(), salt_, world());
    group_.gather(in.tensor(), me_ == root ? out.tensor() : Tensor(), root, given(counts))->wait();
    check(out, joined(counts), "gather");
  }

  void scatter(int64_t size, int root) {
    const Counts counts = member_counts(size);
    const Guarded in(me_ == root ? total(counts) : 0, dtype_of<T>, device_),
        out(counts[me()], dtype_of<T>, device_);
    if (me_ == root) fill<T>(in.tensor(), salt_, world());
    group_.scatter(me_ == root ? in.tensor() : Tensor(), out.tensor(), root, given(counts))->wait();
    const int64_t first = before(counts, me_);
    check(
        out, [&](int64_t i) { return value<T>(salt_, at(root), first + i); }, "scatter");
  }

  void all(int64_t size, std::span<const ReduceOp> ops = kOps) {
    const int root = static_cast<int>(salt_ % static_cast<uint64_t>(n_));
    for (const ReduceOp op : ops) {
      if (!allowed(op, dtype_of<T>, backend_)) continue;
      ++salt_;
      reduce_scatter(size, op, (salt_ & 1) != 0);
      if (with_counts_) continue;  // no such form
      all_reduce(size, op);
      reduce(size, op, root);
    }
    all_gather(size, (salt_ & 1) != 0);
    all_to_all(size);
    gather(size, root);
    scatter(size, root);
    if (!with_counts_) broadcast(size, root);
  }

 private:
  [[nodiscard]] size_t me() const { return static_cast<size_t>(me_); }
  [[nodiscard]] int at(int member) const { return ranks_[static_cast<size_t>(member)]; }
  [[nodiscard]] int world() const { return at(me_); }
  static int64_t total(const Counts& c) { return std::accumulate(c.begin(), c.end(), int64_t{0}); }
  static int64_t before(const Counts& c, int part) {
    return std::accumulate(c.begin(), c.begin() + part, int64_t{0});
  }
  [[nodiscard]] Counts given(const Counts& c) const { return with_counts_ ? c : Counts(); }

  // Uneven: some members have nothing, others a few more than `size`.
  [[nodiscard]] Counts member_counts(int64_t size) const {
    Counts counts;
    for (int p = 0; p < n_; ++p)
      counts.push_back(!with_counts_ ? size : (p + n_) % 3 == 1 ? 0 : size + 5 * p);
    return counts;
  }

  [[nodiscard]] auto joined(Counts counts) const {
    return [this, c = std::move(counts)](int64_t i) {
      int p = 0;
      while (i >= c[static_cast<size_t>(p)]) i -= c[static_cast<size_t>(p++)];
      return value<T>(salt_, at(p), i);
    };
  }

  template <class Expected>
  void check(const Guarded& x, const Expected& expected, const char* what,
             ReduceOp op = ReduceOp::sum) {
    check_tensor(x.tensor(), expected, what, op);
    EXPECT_TRUE(x.guards_stand()) << what << " wrote beyond its output";
  }
  template <class Expected>
  void check_tensor(const Tensor& x, const Expected& expected, const char* what,
                    ReduceOp op = ReduceOp::sum) {
    const Tensor host = to_device(x, kCpu);
    note_bits(host);
    const T* got = x.numel() > 0 ? host.data<T>() : nullptr;
    const bool adds = op == ReduceOp::sum || op == ReduceOp::avg;
    int64_t wrong = 0, first = -1;
    const int64_t n = x.numel(), step = n > 20'000 ? 7 : 1;  // prime to all sizes of pieces
    for (int64_t i = 0; i < n; i += i + 100 < n ? step : 1) {
      const T want = expected(i);
      if (!backend_.exact && adds ? near<T>(got[i], want, n_) : same<T>(got[i], want)) continue;
      if (wrong++ == 0) first = i;
    }
    EXPECT_EQ(wrong, 0) << what << ' ' << op << ' ' << x.meta()
                        << (with_counts_ ? " with counts" : "") << ", rank " << me_ << " of " << n_
                        << ": first at " << first;
  }

  const Backend& backend_;
  ProcessGroup& group_;
  uint64_t salt_;
  std::vector<int> ranks_;
  int n_, me_;
  bool with_counts_;
  Device device_;
};

class Conformance : public testing::TestWithParam<Backend> {
 protected:
  /// On n ranks, or as many as there can be.
  void run(int n, const RankFunction& fn) const {
    GetParam().run(std::min(n, GetParam().most_ranks()), fn);
  }
};

TEST_P(Conformance, EveryCollectiveDTypeOpAndSize) {
  for (const int n : kSizes) {
    if (n > GetParam().most_ranks()) break;
    run(n, [](World& w) {
      uint64_t salt = 0;
      for_types<double, float, bf16, f16, f8_e4m3, f8_e5m2, int64_t, int32_t, uint8_t, bool>(
          [&]<class T>() {
            for (const int64_t size : {0, 1, 7, 1000, 4500}) {
              for (const bool with_counts : {false, true})
                Case<T>(GetParam(), w.group(), salt += 16, with_counts).all(size);
            }
          });
    });
  }
}

// Several rounds of staging, with an odd rest.
TEST_P(Conformance, LargePayloads) {
#ifdef __SANITIZE_THREAD__
  constexpr int kGroups[]{2, 3};  // the rest shows it nothing new, slowly
#else
  constexpr auto& kGroups = kSizes;
#endif
  for (const int n : kGroups) {
    if (n > GetParam().most_ranks()) break;
    run(n, [](World& w) {
      uint64_t salt = 77;
      for_types<double, bf16>([&]<class T>() {
        const int64_t size =
            600 * 1024 / static_cast<int64_t>(sizeof(T)) / (w.size() > 4 ? 2 : 1) + 3;
        for (const bool with_counts : {false, true})
          Case<T>(GetParam(), w.group(), salt += 16, with_counts)
              .all(size, {{ReduceOp::avg, ReduceOp::max}});
      });
    });
  }
}

TEST_P(Conformance, RandomSubgroups) {
  run(8, [](World& w) {
    Dice dice(11);
    const int n = w.size();
    for (int round = 0; round < 24; ++round) {
      // Every rank draws the same partition and order of members.
      std::vector<int> ranks(static_cast<size_t>(n));
      std::iota(ranks.begin(), ranks.end(), 0);
      dice.shuffle(ranks);
      const size_t cut = static_cast<size_t>(dice.below(n + 1));
      const bool first = std::find(ranks.begin(), ranks.end(), w.rank()) - ranks.begin() <
                         static_cast<int64_t>(cut);
      const std::vector<int> members =
          first ? std::vector<int>(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(cut))
                : std::vector<int>(ranks.begin() + static_cast<std::ptrdiff_t>(cut), ranks.end());
      const auto group = w.group().subgroup(members, first ? "first" : "second");
      ASSERT_EQ(std::vector<int>(group->ranks().begin(), group->ranks().end()), members);
      const auto salt = static_cast<uint64_t>(round) * 1000;
      Case<float>(GetParam(), *group, salt, false).all(round % 3 == 0 ? 40'001 : 33);
      Case<int64_t>(GetParam(), *group, salt, true).all(17);
    }
  });
}

TEST_P(Conformance, SplitByColourAndKey) {
  run(5, [](World& w) {
    const auto group = w.group().split(w.rank() % 2, -w.rank(), "parity");
    std::vector<int> expected;
    for (int r = w.size() - 1; r >= 0; --r)
      if (r % 2 == w.rank() % 2) expected.push_back(r);
    EXPECT_EQ(std::vector<int>(group->ranks().begin(), group->ranks().end()), expected);
    Case<double>(GetParam(), *group, 5, false).all(9);
    EXPECT_EQ(static_cast<bool>(w.group().split(w.rank() == 1 ? -1 : 7)), w.rank() != 1);
  });
}

// Many works on two groups at once, started in one order per group, waited for in any.
TEST_P(Conformance, AsyncOverlap) {
  run(4, [](World& w) {
    const auto pair = w.group().split(w.rank() / 2, 0, "pair");
    const Device device = GetParam().device(w.rank());
    // A group's part on a device is made by its first operation, which all ranks start in one
    // order.
    for (ProcessGroup* group : {&w.group(), pair.get()})
      group->all_reduce(to_device(from_values({1}, {1}), device))->wait();
    Dice dice(static_cast<uint64_t>(w.rank()) + 99);
    for (int round = 0; round < 20; ++round) {
      const int64_t size = round % 4 == 0 ? 150'000 : 100;
      struct Started {
        Ref<Work> work;
        Tensor x;
        const ProcessGroup* group;
        uint64_t salt;
      };
      std::vector<Started> started;
      const auto start = [&](ProcessGroup& group, uint64_t salt) {
        const Tensor x = empty({size}, DType::f32, device);
        fill<float>(x, salt, w.rank());
        started.push_back({group.all_reduce(x), x, &group, salt});
      };
      // Which group comes first differs between ranks.
      int world_left = 4, pair_left = 4;
      while (world_left + pair_left > 0) {
        if (pair_left == 0 || (world_left > 0 && dice.below(2) == 0))
          start(w.group(), static_cast<uint64_t>(1000 * round + world_left--));
        else start(*pair, static_cast<uint64_t>(1000 * round + 100 + pair_left--));
      }
      dice.shuffle(started);
      for (size_t i = 0; i < started.size(); ++i) {
        Started& s = started[i];
        if (i % 3 == 2) {
          while (!s.work->test()) std::this_thread::yield();
        } else {
          s.work->wait();
        }
        const std::vector<int> ranks(s.group->ranks().begin(), s.group->ranks().end());
        const Tensor host = to_device(s.x, kCpu);
        for (int64_t e = 0; e < size; e += 37) {
          const float want = reduced<float>(s.salt, ranks, ReduceOp::sum, e),
                      got = host.data<float>()[e];
          ASSERT_TRUE(GetParam().exact ? same(got, want) : near(got, want, w.size()));
        }
      }
    }
  });
}

// Two ranks send to each other by four tags before either receives, in another order.
TEST_P(Conformance, MessagesBothWays) {
  const int64_t bytes = long_form() ? int64_t{64} << 20 : int64_t{1} << 20;
  run(2, [&](World& w) {
    if (w.size() < 2) return;  // nobody to send to
    const Device device = GetParam().device(w.rank());
    for_types<float, bf16, int64_t>([&]<class T>() {
      constexpr int kTags = 4;
      const int peer = 1 - w.rank();
      const int64_t size = bytes / static_cast<int64_t>(sizeof(T)) + 3;
      std::vector<Tensor> sent;
      std::vector<Ref<Work>> works;
      for (int tag = 0; tag < kTags; ++tag) {
        for (const int64_t n : {size, int64_t{0}, int64_t{5}}) {
          sent.push_back(empty({n}, dtype_of<T>, device));
          fill<T>(sent.back(), static_cast<uint64_t>(tag), w.rank());
          works.push_back(w.group().send(sent.back(), peer, tag));
        }
      }
      for (const int tag : {2, 0, 3, 1}) {
        for (const int64_t n : {size, int64_t{0}, int64_t{5}}) {
          const Guarded x(n, dtype_of<T>, device);
          w.group().recv(x.tensor(), peer, tag)->wait();
          EXPECT_TRUE(x.guards_stand());
          const Tensor host = to_device(x.tensor(), kCpu);
          note_bits(host);
          for (int64_t i = 0; i < n; i += 997) {
            ASSERT_TRUE(same<T>(host.data<T>()[i], value<T>(static_cast<uint64_t>(tag), peer, i)))
                << "tag " << tag << " element " << i;
          }
        }
      }
      for (const auto& work : works) work->wait();
    });
  });
}

TEST_P(Conformance, Barrier) {
  run(5, [](World& w) {
    static std::atomic<int> came{0};
    if (w.rank() == 0) came = 0;
    w.group().barrier()->wait();
    ++came;
    w.group().barrier()->wait();
    if (!ranks_launcher()) {
      EXPECT_EQ(came, w.size());
    }
    w.group().barrier()->wait();
  });
}

}  // namespace tessera::test
