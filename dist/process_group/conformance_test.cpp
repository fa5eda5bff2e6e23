// SPDX-License-Identifier: Apache-2.0
// The conformance suite: every collective, even and with counts, every dtype, operation and size,
// over every back end, bit for bit against brute force. `ranks` is whatever the program runs on
// (threads, or a launcher's processes), `staged` are threads that move payloads as processes do.
#include "tessera/dist/launch/threads_impl.h"
#include "tessera/tests/support/collectives.h"
#include "tessera/tests/support/ranks.h"

#include <numeric>

namespace tessera {
namespace {

using test::Dice;
using test::Guarded;
using Kind = CollectiveKind;

struct Backend {
  const char* name;
  void (*run)(int n, const test::RankFunction& fn);
};
void PrintTo(const Backend& b, std::ostream* out) { *out << b.name; }

void run_default(int n, const test::RankFunction& fn) { test::on_ranks(n, fn); }
void run_staged(int n, const test::RankFunction& fn) {
  run_threads(n, fn, {}, PayloadMode::staged);
}

constexpr ReduceOp kOps[]{ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min};
constexpr int kSizes[]{1, 2, 3, 4, 5, 8};

template <class... T, class F> void for_types(F&& f) { (f.template operator()<T>(), ...); }

bool allowed(ReduceOp op, DType t) {
  return op == ReduceOp::avg ? is_floating(t) : op == ReduceOp::sum ? t != DType::bool_ : true;
}

// One collective of one rank on tensors of T, checked element by element.
template <class T> class Case {
 public:
  Case(ProcessGroup& group, uint64_t salt, bool with_counts)
      : group_(group), salt_(salt), ranks_(group.ranks().begin(), group.ranks().end()) {
    n_ = group.size();
    me_ = group.rank();
    with_counts_ = with_counts;
  }

  void all_reduce(int64_t size, ReduceOp op) {
    const Guarded x(size, dtype_of<T>);
    test::fill<T>(x.tensor(), salt_, world());
    group_.all_reduce(x.tensor(), op)->wait();
    check(
        x, [&](int64_t i) { return test::reduced<T>(salt_, ranks_, op, i); }, "all_reduce", op);
  }

  void reduce(int64_t size, ReduceOp op, int root) {
    const Guarded x(size, dtype_of<T>);
    test::fill<T>(x.tensor(), salt_, world());
    group_.reduce(x.tensor(), root, op)->wait();
    check(
        x,
        [&](int64_t i) {
          return me_ == root ? test::reduced<T>(salt_, ranks_, op, i)
                             : test::value<T>(salt_, world(), i);
        },
        "reduce", op);
  }

  void broadcast(int64_t size, int root) {
    const Guarded x(size, dtype_of<T>);
    if (me_ == root) test::fill<T>(x.tensor(), salt_, world());
    group_.broadcast(x.tensor(), root)->wait();
    check(
        x, [&](int64_t i) { return test::value<T>(salt_, at(root), i); }, "broadcast");
  }

  void all_gather(int64_t size, bool in_place) {
    const Counts counts = member_counts(size);
    const Guarded out(total(counts), dtype_of<T>), apart(counts[me()], dtype_of<T>);
    const Tensor in = in_place ? alias(out.tensor(), {counts[me()]}, {1},
                                       out.tensor().offset() + before(counts, me_))
                               : apart.tensor();
    test::fill<T>(in, salt_, world());
    group_.all_gather(in, out.tensor(), given(counts))->wait();
    check(out, joined(counts), "all_gather");
  }

  void reduce_scatter(int64_t size, ReduceOp op, bool in_place) {
    const Counts counts = member_counts(size);
    const Guarded in(total(counts), dtype_of<T>), apart(counts[me()], dtype_of<T>);
    test::fill<T>(in.tensor(), salt_, world());
    const int64_t first = before(counts, me_);
    const Tensor out = in_place
                           ? alias(in.tensor(), {counts[me()]}, {1}, in.tensor().offset() + first)
                           : apart.tensor();
    group_.reduce_scatter(in.tensor(), out, op, given(counts))->wait();
    check_tensor(
        out, [&](int64_t i) { return test::reduced<T>(salt_, ranks_, op, first + i); },
        "reduce_scatter", op);
    EXPECT_TRUE(in.guards_stand() && apart.guards_stand());
  }

  void all_to_all(int64_t size) {
    // Rank a sends size + a + 2b elements to rank b, or none where (a + b) % 3 == 1.
    const auto pair = [&](int a, int b) {
      return !with_counts_ ? size : (a + b) % 3 == 1 ? 0 : size + a + 2 * b;
    };
    Counts to, from;
    for (int p = 0; p < n_; ++p) to.push_back(pair(me_, p)), from.push_back(pair(p, me_));
    const Guarded in(total(to), dtype_of<T>), out(total(from), dtype_of<T>);
    test::fill<T>(in.tensor(), salt_, world());
    group_.all_to_all(in.tensor(), out.tensor(), given(to), given(from))->wait();
    std::vector<T> expected;
    for (int p = 0; p < n_; ++p) {
      int64_t start = 0;
      for (int q = 0; q < me_; ++q) start += pair(p, q);
      for (int64_t i = 0; i < pair(p, me_); ++i)
        expected.push_back(test::value<T>(salt_, at(p), start + i));
    }
    check(
        out, [&](int64_t i) { return static_cast<T>(expected[static_cast<size_t>(i)]); },
        "all_to_all");
  }

  void gather(int64_t size, int root) {
    const Counts counts = member_counts(size);
    const Guarded in(counts[me()], dtype_of<T>), out(me_ == root ? total(counts) : 0, dtype_of<T>);
    test::fill<T>(in.tensor(), salt_, world());
    group_.gather(in.tensor(), me_ == root ? out.tensor() : Tensor(), root, given(counts))->wait();
    check(out, joined(counts), "gather");
  }

  void scatter(int64_t size, int root) {
    const Counts counts = member_counts(size);
    const Guarded in(me_ == root ? total(counts) : 0, dtype_of<T>), out(counts[me()], dtype_of<T>);
    if (me_ == root) test::fill<T>(in.tensor(), salt_, world());
    group_.scatter(me_ == root ? in.tensor() : Tensor(), out.tensor(), root, given(counts))->wait();
    const int64_t first = before(counts, me_);
    check(
        out, [&](int64_t i) { return test::value<T>(salt_, at(root), first + i); }, "scatter");
  }

  void all(int64_t size, std::span<const ReduceOp> ops = kOps) {
    const int root = static_cast<int>(salt_ % static_cast<uint64_t>(n_));
    for (const ReduceOp op : ops) {
      if (!allowed(op, dtype_of<T>)) continue;
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
      return test::value<T>(salt_, at(p), i);
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
    test::note_bits(x);
    const T* got = x.numel() > 0 ? x.data<T>() : nullptr;
    int64_t wrong = 0, first = -1;
    const int64_t n = x.numel(), step = n > 20'000 ? 7 : 1;  // prime to all sizes of pieces
    for (int64_t i = 0; i < n; i += i + 100 < n ? step : 1) {
      if (test::same<T>(got[i], expected(i))) continue;
      if (wrong++ == 0) first = i;
    }
    EXPECT_EQ(wrong, 0) << what << ' ' << op << ' ' << x.meta()
                        << (with_counts_ ? " with counts" : "") << ", rank " << me_ << " of " << n_
                        << ": first at " << first;
  }

  ProcessGroup& group_;
  uint64_t salt_;
  std::vector<int> ranks_;
  int n_, me_;
  bool with_counts_;
};

class Conformance : public testing::TestWithParam<Backend> {};

TEST_P(Conformance, EveryCollectiveDTypeOpAndSize) {
  for (const int n : kSizes) {
    GetParam().run(n, [](World& w) {
      uint64_t salt = 0;
      for_types<double, float, bf16, f16, f8_e4m3, f8_e5m2, int64_t, int32_t, uint8_t, bool>(
          [&]<class T>() {
            for (const int64_t size : {0, 1, 7, 1000, 4500}) {
              for (const bool with_counts : {false, true})
                Case<T>(w.group(), salt += 16, with_counts).all(size);
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
    GetParam().run(n, [](World& w) {
      uint64_t salt = 77;
      for_types<double, bf16>([&]<class T>() {
        const int64_t size =
            600 * 1024 / static_cast<int64_t>(sizeof(T)) / (w.size() > 4 ? 2 : 1) + 3;
        for (const bool with_counts : {false, true})
          Case<T>(w.group(), salt += 16, with_counts).all(size, {{ReduceOp::avg, ReduceOp::max}});
      });
    });
  }
}

TEST_P(Conformance, RandomSubgroups) {
  GetParam().run(8, [](World& w) {
    Dice dice(11);
    for (int round = 0; round < 24; ++round) {
      // Every rank draws the same partition and order of members.
      std::vector<int> ranks(8);
      std::iota(ranks.begin(), ranks.end(), 0);
      dice.shuffle(ranks);
      const size_t cut = static_cast<size_t>(dice.below(9));
      const bool first = std::find(ranks.begin(), ranks.end(), w.rank()) - ranks.begin() <
                         static_cast<int64_t>(cut);
      const std::vector<int> members =
          first ? std::vector<int>(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(cut))
                : std::vector<int>(ranks.begin() + static_cast<std::ptrdiff_t>(cut), ranks.end());
      const auto group = w.group().subgroup(members, first ? "first" : "second");
      ASSERT_EQ(std::vector<int>(group->ranks().begin(), group->ranks().end()), members);
      const auto salt = static_cast<uint64_t>(round) * 1000;
      Case<float>(*group, salt, false).all(round % 3 == 0 ? 40'001 : 33);
      Case<int64_t>(*group, salt, true).all(17);
    }
  });
}

TEST_P(Conformance, SplitByColourAndKey) {
  GetParam().run(5, [](World& w) {
    const auto group = w.group().split(w.rank() % 2, -w.rank(), "parity");
    const std::vector<int> expected = w.rank() % 2 ? std::vector{3, 1} : std::vector{4, 2, 0};
    EXPECT_EQ(std::vector<int>(group->ranks().begin(), group->ranks().end()), expected);
    Case<double>(*group, 5, false).all(9);
    EXPECT_EQ(static_cast<bool>(w.group().split(w.rank() == 2 ? -1 : 7)), w.rank() != 2);
  });
}

// Many works on two groups at once, started in one order per group, waited for in any.
TEST_P(Conformance, AsyncOverlap) {
  GetParam().run(4, [](World& w) {
    const auto pair = w.group().split(w.rank() / 2, 0, "pair");
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
        const Tensor x = empty({size});
        test::fill<float>(x, salt, w.rank());
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
        for (int64_t e = 0; e < size; e += 37) {
          ASSERT_TRUE(test::same(s.x.data<float>()[e],
                                 test::reduced<float>(s.salt, ranks, ReduceOp::sum, e)));
        }
      }
    }
  });
}

// Sums over the axes of a mesh equal the sum over the flattened axis where the fast axes are powers
// of two.
TEST_P(Conformance, NestedAxesEqualTheFlattenedOne) {
  struct Axes {
    int slow, fast;
  };
  for (const Axes a : {Axes{2, 2}, Axes{2, 4}, Axes{4, 2}, Axes{3, 2}}) {
    GetParam().run(a.slow * a.fast, [&](World& w) {
      const auto fast = w.group().split(w.rank() / a.fast, 0, "fast");
      const auto slow = w.group().split(w.rank() % a.fast, 0, "slow");
      for (const int64_t size : {5, 100'003}) {
        const Tensor nested = empty({size}), flat = empty({size});
        test::fill<float>(nested, 3, w.rank());
        test::fill<float>(flat, 3, w.rank());
        fast->all_reduce(nested)->wait();
        slow->all_reduce(nested)->wait();
        w.group().all_reduce(flat)->wait();
        for (int64_t i = 0; i < size; ++i)
          ASSERT_TRUE(test::same(nested.data<float>()[i], flat.data<float>()[i])) << i;
      }
    });
  }
}

TEST(ConformanceThreads, SeveralPerRankGiveTheSameBits) {
  for (const PayloadMode mode : {PayloadMode::direct, PayloadMode::staged}) {
    WorldOptions options;
    options.threads = 3;
    run_threads(
        2, [](World& w) { Case<float>(w.group(), 21, false).all(400'003); }, options, mode);
  }
}

TEST_P(Conformance, Barrier) {
  GetParam().run(5, [](World& w) {
    static std::atomic<int> came{0};
    if (w.rank() == 0) came = 0;
    w.group().barrier()->wait();
    ++came;
    w.group().barrier()->wait();
    if (!test::ranks_launcher()) {
      EXPECT_EQ(came, 5);
    }
    w.group().barrier()->wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Conformance,
                         testing::Values(Backend{"ranks", run_default},
                                         Backend{"staged", run_staged}),
                         [](const auto& backend) { return std::string(backend.param.name); });

}  // namespace
}  // namespace tessera
