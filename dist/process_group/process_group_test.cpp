// SPDX-License-Identifier: Apache-2.0
// Process groups beyond the values of collectives: refused arguments, messages, work that nobody
// waits for, progress in op calls and on a thread, deadlines, flight records.
#include "tessera/core/process.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/threads_impl.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/tests/support/collectives.h"
#include "tessera/tests/support/ranks.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <unistd.h>

namespace tessera {
namespace {

using namespace std::chrono_literals;

std::string slurp(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

template <class E, class F> std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "another error: " << e.what();
    return {};
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(ProcessGroup, RefusesWhatDoesNotFit) {
  test::on_ranks(2, [](World& w) {
    ProcessGroup& g = w.group();
    const Tensor four = empty({4}), three = empty({3}), ints = empty({4}, DType::i32);
    const auto has = [](const std::string& text, const char* part) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    };
    has(message_of<UsageError>([&] { g.all_reduce({}); }), "undefined");
    const Mesh mesh = Mesh::make({{"dp", 2}});
    has(message_of<LayoutError>(
            [&] { g.all_reduce(distribute(zeros({4}), Layout::of(mesh, {Shard(0)}))); }),
        "collectives of a group move local ones: give its local()");
    const Tensor released = empty({4});
    released.storage().release_bytes();
    has(message_of<StorageError>([&] { g.all_reduce(released); }), "f32[4] are released");
    has(message_of<DTypeError>([&] { g.all_reduce(ints, ReduceOp::avg); }), "avg of i32");
    has(message_of<DTypeError>([&] { g.all_reduce(empty({2}, DType::bool_)); }), "max (any)");
    has(message_of<IndexError>([&] { g.broadcast(four, 2); }), "0 to 1");
    has(message_of<IndexError>([&] { g.send(four, -1); }), "receiver is -1");
    has(message_of<ShapeError>([&] { g.all_gather(three, four); }), "ask for 2");
    has(message_of<ShapeError>([&] { g.all_gather(four, three); }),
        "cannot be divided among 2 ranks");
    has(message_of<ShapeError>([&] { g.all_gather(three, four, {3, 2}); }), "[3, 2]");
    has(message_of<ShapeError>([&] { g.reduce_scatter(four, three, ReduceOp::sum, {1}); }),
        "one per rank");
    has(message_of<ShapeError>([&] {
          g.reduce_scatter(four, four, ReduceOp::sum, {5, -1});
        }),
        "negative");
    has(message_of<DTypeError>([&] { g.all_to_all(four, ints); }), "must be equal");
    const Tensor wide = empty({4, 4}), column = alias(wide, {4}, {4}, 0);
    EXPECT_FALSE(column.impl().contiguous && column.is_contiguous());
    has(message_of<UsageError>([&] { g.all_reduce(column); }), "not contiguous");
    has(message_of<UsageError>([&] { g.subgroup(std::vector<int>{1 - w.rank()}, "other"); }),
        "not in");
    has(message_of<UsageError>([&] { g.subgroup(std::vector<int>{0, 0}, "twice"); }), "twice");
    has(message_of<IndexError>([&] { g.subgroup(std::vector<int>{0, 7}, "far"); }), "member 7");
    has(message_of<ValueError>([&] { g.set_timeout(0ms); }), "0 ms");
    has(message_of<UsageError>([&] { g.all_to_all(four, four); }), "overlap");
    const Tensor late = alias(four, {2}, {1}, 1);
    has(message_of<UsageError>([&] { g.all_gather(late, four); }), "own part");
    g.barrier()->wait();  // nothing of that has reached the others
  });
}

TEST(ProcessGroup, WritingIsSeenByAutograd) {
  test::on_ranks(2, [](World& w) {
    const Tensor x = empty({2}), out = empty({4});
    const uint32_t before = x.storage().version(), before_out = out.storage().version();
    w.group().all_gather(x, out)->wait();
    EXPECT_EQ(x.storage().version(), before);
    EXPECT_EQ(out.storage().version(), before_out + 1);
  });
}

class Messages : public testing::TestWithParam<PayloadMode> {};

TEST_P(Messages, RingOfEverySize) {
  run_threads(
      4,
      [](World& w) {
        const int next = (w.rank() + 1) % 4, before = (w.rank() + 3) % 4;
        for (const int64_t size : {0, 1, 33, 8192, 100'001}) {
          const Tensor x = empty({size});
          const test::Guarded y(size, DType::f32);
          test::fill<float>(x, 4, w.rank());
          const auto sent = w.group().send(x, next, 3);
          w.group().recv(y.tensor(), before, 3)->wait();
          sent->wait();
          EXPECT_TRUE(y.guards_stand());
          for (int64_t i = 0; i < size; ++i)
            ASSERT_TRUE(test::same(y.tensor().data<float>()[i], test::value<float>(4, before, i)));
        }
      },
      {}, GetParam());
}

// Tags choose; messages of one tag keep their order; what comes early is kept.
TEST_P(Messages, TagsInAnyOrder) {
  run_threads(
      2,
      [](World& w) {
        constexpr int kMessages = 12;
        const auto size = [](int m) { return m % 5 == 0 ? 70'000 + m : 10 + m; };
        std::vector<Ref<Work>> works;
        std::vector<Tensor> tensors;
        for (int m = 0; m < kMessages; ++m) tensors.push_back(empty({size(m)}, DType::i32));
        if (w.rank() == 0) {
          for (int m = 0; m < kMessages; ++m) {
            test::fill<int32_t>(tensors[static_cast<size_t>(m)], static_cast<uint64_t>(m), 0);
            works.push_back(w.group().send(tensors[static_cast<size_t>(m)], 1, m / 3));
          }
        } else {
          for (int tag = 3; tag >= 0; --tag) {
            for (int m = 3 * tag; m < 3 * tag + 3; ++m) {
              works.push_back(w.group().recv(tensors[static_cast<size_t>(m)], 0, tag));
              if (m % 2) works.back()->wait();
            }
          }
        }
        for (const auto& work : works) work->wait();
        for (int m = 0; m < kMessages; ++m) {
          for (int64_t i = 0; i < size(m); ++i) {
            ASSERT_EQ(tensors[static_cast<size_t>(m)].data<int32_t>()[i],
                      test::value<int32_t>(static_cast<uint64_t>(m), 0, i));
          }
        }
      },
      {}, GetParam());
}

TEST_P(Messages, ToItselfAndAcrossCollectives) {
  run_threads(
      2,
      [](World& w) {
        const Tensor x = tensor({1, 2, 3}), y = empty({3}), sum = tensor({1});
        const auto received = w.group().recv(y, w.rank());
        w.group().all_reduce(sum)->wait();
        w.group().send(x, w.rank())->wait();
        received->wait();
        EXPECT_EQ(y.values(), x.values());
        EXPECT_EQ(sum.item(), 2);
      },
      {}, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Modes, Messages,
                         testing::Values(PayloadMode::direct, PayloadMode::staged));

// A rank whose peer waits moves on in its op calls alone.
TEST(Progress, EveryOpCallMovesWorkOn) {
  for (const PayloadMode mode : {PayloadMode::direct, PayloadMode::staged}) {
    std::atomic<bool> started{false}, finished{false};
    WorldOptions options;
    options.progress = ProgressThread::never;
    run_threads(
        2,
        [&](World& w) {
          const Tensor x = empty({500'000});
          std::fill_n(x.data<float>(), x.numel(), 1.0f);
          while (w.rank() == 0 && !started) std::this_thread::yield();
          const auto work = w.group().all_reduce(x);
          if (w.rank() == 0) {
            work->wait();
            finished = true;
          } else {
            EXPECT_NE(Context::current().progress, nullptr);
            started = true;
            const Tensor a = tensor({1, 2});
            const auto end = std::chrono::steady_clock::now() + 60s;
            while (!finished && std::chrono::steady_clock::now() < end) (void)add(a, a);
            EXPECT_TRUE(finished);
            work->wait();
          }
          EXPECT_EQ(x.data<float>()[499'999], 2);
          EXPECT_EQ(Context::current().progress, nullptr);
        },
        options, mode);
  }
}

TEST(Progress, ThreadMovesWorkOn) {
  for (const PayloadMode mode : {PayloadMode::direct, PayloadMode::staged}) {
    std::atomic<bool> finished{false};
    WorldOptions options;
    options.progress = ProgressThread::always;
    run_threads(
        3,
        [&](World& w) {
          const auto pair = w.group().split(w.rank() / 2);
          for (int round = 0; round < 20; ++round) {
            const Tensor x = empty({100'000}), y = tensor({1, 1});
            std::fill_n(x.data<float>(), x.numel(), 1.0f);
            const auto work = w.group().all_reduce(x);
            pair->all_reduce(y)->wait();
            work->wait();
            ASSERT_EQ(x.data<float>()[99'999], 3);
            ASSERT_EQ(y.values()[1], pair->size());
          }
          const Tensor x = empty({100'000});
          const auto work = w.group().all_reduce(x);
          if (w.rank() == 0) {
            work->wait();
            finished = true;
          } else {
            const auto end = std::chrono::steady_clock::now() + 60s;
            while (!finished && std::chrono::steady_clock::now() < end)
              std::this_thread::sleep_for(1ms);  // no call into the library
            EXPECT_TRUE(finished);
          }
        },
        options, mode);
  }
}

// A Work may be dropped at once, its tensors too; later collectives and the end of the rank see it
// through.
TEST(Progress, DroppedWorkIsCompleted) {
  for (const PayloadMode mode : {PayloadMode::direct, PayloadMode::staged}) {
    run_threads(
        3,
        [](World& w) {
          const Tensor kept = empty({50'000});
          std::fill_n(kept.data<float>(), kept.numel(), static_cast<float>(w.rank()));
          for (int i = 0; i < 10; ++i) (void)w.group().all_reduce(empty({70'001}));
          (void)w.group().all_reduce(kept);
          (void)w.group().subgroup(std::vector<int>{2, 1, 0}, "short-lived")->barrier();
          w.group().barrier()->wait();
          EXPECT_EQ(kept.data<float>()[49'999], 3);
          (void)w.group().all_reduce(empty({200'000}));
        },
        {}, mode);
  }
}

TEST(Deadline, NamesWhoNeverArrivedAndDumpsTheRecord) {
  WorldOptions options;
  options.flight_folder =
      (std::filesystem::temp_directory_path() / concat("tessera_deadline_", getpid())).string();
  options.init_timeout = 60s;
  options.train_timeout = 150ms;
  std::atomic<int> timeouts{0};
  std::string record;
  const auto rank = [&](World& w) {
    const Tensor x = tensor({1, 2, 3});
    w.group().all_reduce(x)->wait();
    w.first_step_done();
    EXPECT_EQ(w.group().timeout(), 150ms);
    w.group().barrier()->wait();
    if (w.rank() == 2) std::this_thread::sleep_for(600ms);
    const std::string text =
        message_of<CollectiveTimeout>([&] { w.group().all_reduce(x, ReduceOp::max)->wait(); });
    for (const char* part :
         {"all_reduce max f32[3] #3", "group world", "after 150 ms",
          "waiting for: rank 2 never arrived (its last collective here is #2)"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
    ++timeouts;
    if (w.rank() == 0) record = slurp(w.group().recorder().path());
    // A group that has failed stays so.
    message_of<CollectiveTimeout>([&] { w.group().barrier()->wait(); });
  };
  run_ranks(3, rank, options);
  EXPECT_EQ(timeouts, 3);
  for (const char* part :
       {"\"rank\": 0", "\"kind\": \"barrier\"", "\"op\": \"max\"", "\"state\": \"failed\"",
        "\"state\": \"done\"", "never arrived", "\"dtype\": \"f32\""}) {
    EXPECT_NE(record.find(part), std::string::npos) << part << " in " << record;
  }
  std::filesystem::remove_all(options.flight_folder);
}

TEST(Deadline, GroupsThatRanksMakeDifferently) {
  WorldOptions options;
  options.init_timeout = 20s;
  const auto rank = [](World& w) {
    const std::vector<int> two{0, 1}, three{0, 1, 2};
    const std::string text = message_of<CollectiveMismatch>([&] {
      if (w.rank() == 0) w.group().subgroup(two, "pair");
      else w.group().subgroup(three, "all");
    });
    EXPECT_NE(text.find("'pair' of ranks [0, 1]"), std::string::npos) << text;
    EXPECT_NE(text.find("'all' of ranks [0, 1, 2]"), std::string::npos) << text;
  };
  run_ranks(3, rank, options);
  run_ranks(2, [](World& w) {
    message_of<CollectiveMismatch>([&] {
      w.group().subgroup(std::vector<int>{0, 1}, w.rank() ? "tp" : "dp");
    });
  });
}

TEST(FlightRecorder, KeepsTheLatestAndDumpsOnASignal) {
  FlightRecorder::install_signal_handler();
  WorldOptions options;
  options.flight_folder =
      (std::filesystem::temp_directory_path() / concat("tessera_flight_", getpid())).string();
  run_ranks(
      2,
      [](World& w) {
        const Tensor x = tensor({1});
        for (int i = 0; i < 400; ++i) w.group().all_reduce(x)->wait();
        EXPECT_EQ(w.group().recorder().count(), 400u);
        const std::string json = w.group().recorder().json("test");
        EXPECT_EQ(json.find("\"sequence\": 144,"), std::string::npos);
        EXPECT_NE(json.find("\"sequence\": 145,"), std::string::npos);
        EXPECT_NE(json.find("\"sequence\": 400,"), std::string::npos);
        w.group().barrier()->wait();
        if (w.rank() == 0) std::raise(SIGUSR2);
        w.group().barrier()->wait();
        w.group().barrier()->wait();
        EXPECT_NE(slurp(w.group().recorder().path()).find("SIGUSR2"), std::string::npos);
      },
      options);
  std::filesystem::remove_all(options.flight_folder);
  std::signal(SIGUSR2, SIG_DFL);
}

TEST(FlightRecorder, GivesWhatHasEndedOnce) {
  run_ranks(2, [](World& w) {
    FlightRecorder& recorder = w.group().recorder();
    uint64_t from = recorder.count();
    w.group().all_reduce(full({5}, 1))->wait();
    w.group().barrier()->wait();
    const auto two = recorder.ended_since(from);
    ASSERT_EQ(two.size(), 2u);
    EXPECT_EQ(two[0].kind, CollectiveKind::all_reduce);
    EXPECT_EQ(two[0].bytes, 20);
    EXPECT_EQ(two[1].bytes, 0);
    for (const auto& o : two) {
      EXPECT_LE(o.queued, o.ended);
      EXPECT_EQ(o.group, w.group().name());
    }
    EXPECT_TRUE(recorder.ended_since(from).empty());
    for (size_t i = 0; i < FlightRecorder::kEntries + 9; ++i) w.group().barrier()->wait();
    EXPECT_EQ(recorder.ended_since(from).size(), FlightRecorder::kEntries);
    EXPECT_EQ(from, recorder.count());
  });
}

TEST(FlightRecorder, TheRingMayHaveAnySize) {
  run_ranks(2, [](World& w) {
    FlightRecorder& recorder = w.group().recorder();
    for (const size_t entries : {3u, 1000u, 0u}) {
      w.group().barrier()->wait();
      recorder.set_entries(entries);
      uint64_t from = 0;
      EXPECT_TRUE(recorder.ended_since(from).empty());
      const uint64_t before = recorder.count();
      for (int i = 0; i < 300; ++i) w.group().barrier()->wait();
      EXPECT_EQ(recorder.count(), before + 300);
      EXPECT_EQ(recorder.ended_since(from).size(), std::min<size_t>(entries, 300));
      EXPECT_NE(recorder.json("test").find("\"entered\""), std::string::npos);
    }
  });
}

TEST(FlightRecorder, DoesNotFollowLinks) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / concat("tessera_links_", getpid());
  fs::create_directories(folder);
  WorldOptions options;
  options.flight_folder = folder.string();
  std::ofstream(folder / "victim") << "precious";
  const auto rank = [&](World& w) {
    const FlightRecorder& recorder = w.group().recorder();
    for (const char* suffix : {"", ".part"})
      fs::create_symlink(folder / "victim", recorder.path() + suffix);
    EXPECT_TRUE(recorder.dump("test"));
    EXPECT_FALSE(fs::is_symlink(recorder.path()));
    EXPECT_NE(slurp(recorder.path()).find("\"reason\": \"test\""), std::string::npos);
  };
  run_ranks(1, rank, options);
  EXPECT_EQ(slurp((folder / "victim").string()), "precious");
  fs::remove_all(folder);
}

TEST(FlightRecorder, SurvivesAFolderThatCannotBe) {
  WorldOptions options;
  options.flight_folder = "/proc/no/such/folder";
  run_ranks(
      1, [](World& w) { EXPECT_FALSE(w.group().recorder().dump("test")); }, options);
}

TEST(World, NestsOverASubgroup) {
  run_ranks(3, [](World& w) {
    if (w.rank() < 2) {
      World inner(w.group().subgroup(std::vector<int>{1, 0}, "inner"), {}, 2, 1 - w.rank());
      EXPECT_EQ(&World::current(), &inner);
      const Tensor x = tensor({1});
      (void)inner.group().all_reduce(x);
    }
    EXPECT_EQ(&World::current(), &w);
    w.group().barrier()->wait();
  });
}

}  // namespace
}  // namespace tessera
