// SPDX-License-Identifier: Apache-2.0
// Messages as a pipeline uses them: a recv needs no call of its sender, nothing waits for bytes
// under way, many messages are under way at once, in little memory. `ranks` are threads, or a
// launcher's processes; `staged` are threads that leave messages in a pool, as processes do.
#include "tessera/dist/launch/threads_impl.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/tests/support/collectives.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/ranks.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <unistd.h>

namespace tessera {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using test::Dice;

constexpr size_t kSmallPool = size_t{1} << 20;

struct Way {
  const char* name;
  void (*run)(int n, const test::RankFunction& fn, const WorldOptions& options);
};

class PointToPoint : public testing::TestWithParam<Way> {
 protected:
  static void run(int n, const test::RankFunction& fn) {
    WorldOptions options;
    options.progress = ProgressThread::never;
    options.threads = 1;
    options.init_timeout = 60s;
    GetParam().run(n, fn, options);
  }
};

Tensor filled(int64_t n, uint64_t salt, int rank) {
  const Tensor x = empty({n}, DType::i32);
  test::fill<int32_t>(x, salt, rank);
  return x;
}
void expect_filled(const Tensor& x, uint64_t salt, int rank) {
  for (int64_t i = 0; i < x.numel(); i += i < 100 ? 1 : 61)
    ASSERT_EQ(x.data<int32_t>()[i], test::value<int32_t>(salt, rank, i)) << salt << ", " << i;
}

// Where calls of both ranks move a message on.
bool by_messages() {
  const char* transport = std::getenv("TESSERA_TRANSPORT");
  return transport && std::string_view(transport) == "messages";
}

// A file that one rank makes for another, which calls nothing of the library meanwhile.
std::filesystem::path shared_path(World& w) {
  const Tensor number = from_values({static_cast<double>(getpid())}, {1}, DType::i64);
  w.group().broadcast(number, 0)->wait();
  return std::filesystem::temp_directory_path() /
         concat("tessera_messages_", number.data<int64_t>()[0]);
}

TEST_P(PointToPoint, ARecvEndsWhileItsSenderComputes) {
  const int64_t elements = (test::long_form() ? 16 << 20 : 4 << 20) / 4;
  run(2, [&](World& w) {
    const auto path = shared_path(w);
    if (w.rank() == 1) {
      for (const int tag : {1, 0, 2}) {
        const Tensor x = empty({tag == 2 ? 7 : elements}, DType::i32);
        w.group().recv(x, 0, tag)->wait();
        expect_filled(x, static_cast<uint64_t>(tag), 0);
      }
      std::ofstream(path) << "here";
      return;
    }
    std::vector<Ref<Work>> sent;
    for (const int tag : {0, 1, 2}) {
      sent.push_back(
          w.group().send(filled(tag == 2 ? 7 : elements, static_cast<uint64_t>(tag), 0), 1, tag));
    }
    const auto end = Clock::now() + 30s;
    while (!std::filesystem::exists(path) && Clock::now() < end) {
      if (by_messages()) (void)sent[1]->test();
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_TRUE(std::filesystem::remove(path)) << "the recv needs a call of its sender";
    for (const auto& work : sent) work->wait();
  });
}

// Rank 1 does not come before it is told to, by a message behind those that must not wait.
TEST_P(PointToPoint, BytesUnderWayHoldUpNoOtherMessage) {
  run(2, [](World& w) {
    constexpr int64_t kSize = 100'003;
    const Tensor sum = full({kSize}, 1 + w.rank()), first = filled(kSize, 7, 0), go = zeros({1});
    if (w.rank() == 0) {
      (void)w.group().all_reduce(sum);
      (void)w.group().send(sum, 1, 1);
      (void)w.group().send(first, 1, 2);
      (void)w.group().recv(first, 1, 3);  // over what is being sent
      (void)w.group().send(go, 1, 4);
      expect_filled(first, 9, 1);
      EXPECT_EQ(sum.data<float>()[kSize - 1], 3);
      return;
    }
    w.group().recv(go, 0, 4)->wait();
    const Tensor again = empty({kSize}), theirs = empty({kSize}, DType::i32);
    (void)w.group().recv(again, 0, 1);
    (void)w.group().send(filled(kSize, 9, 1), 0, 3);
    (void)w.group().all_reduce(sum);
    (void)w.group().recv(theirs, 0, 2);
    EXPECT_EQ(again.data<float>()[kSize - 1], 3);
    expect_filled(theirs, 7, 0);
  });
}

// A recv into bytes under way takes the first message of its tag, and holds up no other tag.
TEST_P(PointToPoint, ARecvBeginsAfterWhatIsUnderWay) {
  run(2, [](World& w) {
    constexpr int64_t kSize = 50'000;
    const int peer = 1 - w.rank();
    const Tensor x = full({kSize}, 1), y = empty({kSize}), z = empty({kSize}), go = zeros({1});
    if (w.rank() == 0) {
      (void)w.group().all_reduce(x);  // which rank 1 joins late
      (void)w.group().recv(x, peer, 1);
      (void)w.group().recv(y, peer, 1);
      w.group().recv(z, peer, 2)->wait();
      w.group().send(go, peer)->wait();
      EXPECT_EQ(x.data<float>()[kSize - 1], 5);
      EXPECT_EQ(y.data<float>()[kSize - 1], 6);
      EXPECT_EQ(z.data<float>()[kSize - 1], 7);
      return;
    }
    (void)w.group().send(full({kSize}, 5), peer, 1);
    (void)w.group().send(full({kSize}, 6), peer, 1);
    (void)w.group().send(full({kSize}, 7), peer, 2);
    w.group().recv(go, peer)->wait();
    (void)w.group().all_reduce(x);
    EXPECT_EQ(x.data<float>()[0], 2);
  });
}

// More than the ring and a small pool hold, received in any order.
TEST_P(PointToPoint, ManyBothWaysInAnyOrder) {
  run(2, [](World& w) {
    const int peer = 1 - w.rank(), messages = test::long_form() ? 3000 : 700;
    constexpr int kTags = 16;
    const auto size = [](int m, int rank) {
      Dice dice(static_cast<uint64_t>(2 * m + rank));
      const int64_t kind = dice.below(20);
      return kind == 0 ? dice.below(600'000) : kind < 5 ? dice.below(30'000) : dice.below(300);
    };
    for (int m = 0; m < messages; ++m)
      (void)w.group().send(filled(size(m, w.rank()), static_cast<uint64_t>(m), w.rank()), peer,
                           m % kTags);
    std::vector<int> order;
    for (int m = 0; m < messages; ++m) order.push_back(m % kTags);
    Dice dice(static_cast<uint64_t>(5 + w.rank()));
    dice.shuffle(order);
    std::vector<int> next(kTags);
    std::vector<std::pair<int, Tensor>> posted;
    for (const int tag : order) {
      const int m = tag + kTags * next[static_cast<size_t>(tag)]++;
      posted.emplace_back(m, empty({size(m, peer)}, DType::i32));
      const auto work = w.group().recv(posted.back().second, peer, tag);
      if (dice.below(3) == 0) work->wait();
    }
    for (const auto& [m, x] : posted) expect_filled(x, static_cast<uint64_t>(m), peer);
  });
}

// The tensor and the Work are dropped, the bytes are wanted for something else, the world ends.
TEST_P(PointToPoint, ASenderMayLetGoAtOnce) {
  run(2, [](World& w) {
    constexpr int64_t kSize = 300'000;
    if (w.rank() == 0) {
      (void)w.group().send(filled(kSize, 2, 0), 1, 2);
      const Tensor x = filled(kSize, 1, 0);
      (void)w.group().send(x, 1, 1);
      assign_(x, full({kSize}, 0, DType::i32));
      (void)w.group().send(filled(kSize, 3, 0), 1, 3);
      return;
    }
    std::this_thread::sleep_for(50ms);
    for (const int tag : {2, 1, 3}) {
      const Tensor x = empty({kSize}, DType::i32);
      w.group().recv(x, 0, tag)->wait();
      expect_filled(x, static_cast<uint64_t>(tag), 0);
    }
  });
}

// Many ranks, so that a rank of the middle sends and receives both ways.
TEST_P(PointToPoint, APipelineOfFour) {
  run(4, [](World& w) {
    constexpr int64_t kSize = 40'000;
    constexpr int kBatches = 12;
    const int me = w.rank(), last = w.size() - 1;
    std::vector<Tensor> in, out;
    for (int b = 0; b < kBatches; ++b) {  // receives ahead
      in.push_back(me > 0 ? empty({kSize}) : full({kSize}, b));
      if (me > 0) (void)w.group().recv(in.back(), me - 1, 2 * b);
      out.push_back(empty({kSize}));
      if (me < last) (void)w.group().recv(out.back(), me + 1, 2 * b + 1);
    }
    for (int b = 0; b < kBatches; ++b) {
      const Tensor y = add(in[static_cast<size_t>(b)], full({kSize}, 1));
      if (me < last) (void)w.group().send(y, me + 1, 2 * b);
      else out[static_cast<size_t>(b)] = y;
      if (me == last) (void)w.group().send(y, me - 1, 2 * b + 1);
    }
    for (int b = 0; b < kBatches; ++b) {
      if (me > 0 && me < last) (void)w.group().send(out[static_cast<size_t>(b)], me - 1, 2 * b + 1);
      EXPECT_EQ(out[static_cast<size_t>(b)].data<float>()[kSize - 1], b + w.size());
    }
  });
}

void run_default(int n, const test::RankFunction& fn, const WorldOptions& options) {
  test::on_ranks(n, fn, options);
}
void run_staged(int n, const test::RankFunction& fn, const WorldOptions& options) {
  run_threads(n, fn, options, PayloadMode::staged);
}
void run_full_pool(int n, const test::RankFunction& fn, const WorldOptions& options) {
  run_threads(n, fn, options, PayloadMode::staged, kSmallPool);
}
INSTANTIATE_TEST_SUITE_P(Ways, PointToPoint,
                         testing::Values(Way{"ranks", run_default}, Way{"staged", run_staged}),
                         [](const auto& way) { return std::string(way.param.name); });

// What is larger than the pool, or comes when it is full, goes in pieces for which both ranks come.
class FullPool : public PointToPoint {};
TEST_P(FullPool, MessagesBeyondItArrive) {
  run(2, [](World& w) {
    const int peer = 1 - w.rank();
    const std::vector<int64_t> sizes{100'000, 200'000, 3'000'000, 9'000, 50'000, 5, 1'000'000};
    for (int m = 0; const int64_t n : sizes)
      (void)w.group().send(filled(n, static_cast<uint64_t>(m), w.rank()), peer, m), ++m;
    for (const int m : {6, 0, 4, 2, 5, 1, 3}) {
      const Tensor x = empty({sizes[static_cast<size_t>(m)]}, DType::i32);
      w.group().recv(x, peer, m)->wait();
      expect_filled(x, static_cast<uint64_t>(m), peer);
    }
  });
}
// One that may begin while another goes in pieces waits for the last piece.
TEST_P(FullPool, PiecesOfAMessageStayTogether) {
  run(2, [](World& w) {
    constexpr int64_t kSize = 100'003;
    const Tensor sum = full({kSize}, 1 + w.rank()), again = empty({kSize}),
                 large = w.rank() == 0 ? filled(3'000'000, 1, 0) : empty({3'000'000}, DType::i32);
    if (w.rank() == 0) {
      (void)w.group().all_reduce(sum);
      (void)w.group().send(sum, 1, 1);
      (void)w.group().send(large, 1, 2);
      return;
    }
    (void)w.group().recv(large, 0, 2);
    (void)w.group().all_reduce(sum);
    (void)w.group().recv(again, 0, 1);
    expect_filled(large, 1, 0);
    EXPECT_EQ(again.data<float>()[kSize - 1], 3);
  });
}
INSTANTIATE_TEST_SUITE_P(Ways, FullPool, testing::Values(Way{"staged", run_full_pool}),
                         [](const auto& way) { return std::string(way.param.name); });

// A sender whose tensor is still wanted ends with an error when nobody can come for it.
TEST(PointToPointDirect, AMessageThatIsNeverReceivedIsAnError) {
  const std::string text = test::error_of<PeerFailed>([] {
    run_ranks(2, [](World& w) {
      if (w.rank() == 0) (void)w.group().send(zeros({100'000}), 1, 3);
    });
  });
  EXPECT_NE(text.find("rank 1 returned while rank 0 waits for it in send f32[100000] to 1 (tag 3)"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace tessera
