// SPDX-License-Identifier: Apache-2.0
// Two ranks on threads whose messages take longer than the news that a rank has left: what was sent
// before a farewell arrives before it, however late. A failure with works that nobody holds and
// messages under way, while a progress thread runs. And groups that cannot be made.
#include "tessera/dist/messages/group_impl.h"
#include "tessera/dist/world.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <map>

namespace tessera {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// The wires between two ranks: every message takes `delay`, in the order of its pair and tag.
struct Wires {
  struct Packet {
    std::vector<std::byte> bytes;
    Clock::time_point at;
  };
  std::chrono::milliseconds delay{0};
  bool cut = false;  // nothing arrives any more
  int largest_tag = 1 << 30;
  std::atomic<int> past_barrier{0};
  Mutex mutex;
  std::map<std::tuple<int, int, int>, std::deque<Packet>> packets;  // from, to, tag
};

class SlowMessages final : public Messages {
 public:
  SlowMessages(std::shared_ptr<Wires> wires, int rank) : wires_(std::move(wires)), rank_(rank) {}
  Handle send(int to, int tag, const void* data, size_t bytes) override {
    const std::lock_guard guard(wires_->mutex);
    const auto* from = static_cast<const std::byte*>(data);
    wires_->packets[{rank_, to, tag}].push_back(
        {{from, from + bytes}, Clock::now() + wires_->delay});
    return wires_->cut ? new Receive{} : nullptr;
  }
  Handle receive(int from, int tag, void* data, size_t bytes) override {
    return new Receive{from, tag, static_cast<std::byte*>(data), bytes};
  }
  bool done(Handle& handle) override {
    if (!handle) return true;
    const std::lock_guard guard(wires_->mutex);
    auto* receive = static_cast<Receive*>(handle);
    auto& waiting = wires_->packets[{receive->from, rank_, receive->tag}];
    if (wires_->cut || waiting.empty() || waiting.front().at > Clock::now()) return false;
    std::copy(waiting.front().bytes.begin(), waiting.front().bytes.end(), receive->to);
    waiting.pop_front();
    delete receive;
    handle = nullptr;
    return true;
  }
  void abandon(Handle& handle, std::shared_ptr<const void> owner) override {
    if (!handle) return;
    const std::lock_guard guard(wires_->mutex);
    delete static_cast<Receive*>(std::exchange(handle, nullptr));
    gone_.push_back(std::move(owner));
  }
  std::vector<std::shared_ptr<const void>> let_go() override {
    const std::lock_guard guard(wires_->mutex);
    return std::exchange(gone_, {});
  }
  [[nodiscard]] int largest_tag() const override { return wires_->largest_tag; }

 private:
  struct Receive {
    int from = -1, tag = 0;
    std::byte* to = nullptr;
    size_t bytes = 0;
  };
  std::shared_ptr<Wires> wires_;
  int rank_;
  std::vector<std::shared_ptr<const void>> gone_;
};

struct RankOfTwo {
  std::shared_ptr<WorldBoard> board;
  std::shared_ptr<SideChannel> side;
  std::shared_ptr<CommState> comm;
  Ref<ProcessGroup> group;
  ~RankOfTwo() { comm->watch = nullptr; }
};

RankOfTwo join(int rank, const std::shared_ptr<Wires>& wires,
               const std::shared_ptr<RendezvousClient>& client) {
  struct Board {
    WorldBoard head{};
    std::array<WorldBoard::Rank, 2> ranks{};
  };
  const auto memory = std::make_shared<Board>();
  const RankPlace place = RankPlace::own();
  RankOfTwo own;
  own.board = {memory, &memory->head};
  own.comm = std::make_shared<CommState>(rank, own.board);
  const auto messages = std::make_shared<SlowMessages>(wires, rank);
  own.side = std::make_shared<SideChannel>(rank, std::vector{place, place}, own.board, client,
                                           messages, 1);
  own.comm->watch = own.side;
  auto world = std::make_shared<MessageWorld>(MessageWorld{.messages = messages,
                                                           .bootstrap = client,
                                                           .side = own.side,
                                                           .comm = own.comm,
                                                           .backend = "slow",
                                                           .next_id = std::make_shared<int>(0),
                                                           .places = {place, place},
                                                           .may_share = false});
  own.group = make_message_group(std::move(world), {0, 1}, rank, "world", deadline_after(10s));
  return own;
}

// fn(world, own) on both ranks.
template <class Fn>
void on_two(const std::shared_ptr<Wires>& wires, ProgressThread progress, Fn fn) {
  const auto options_of = [](int rank, int port) {
    return RendezvousClient::Options{
        .rank = rank, .size = 2, .host = "localhost", .secret = "s", .port = port, .remedy = ""};
  };
  const auto zero = std::make_shared<RendezvousClient>(options_of(0, 0), deadline_after(10s));
  const auto run = [&](int rank, const std::shared_ptr<RendezvousClient>& client) {
    try {
      RankOfTwo own = join(rank, wires, client);
      WorldOptions options;
      options.threads = 1;
      options.progress = progress;
      options.flight_folder = testing::TempDir();
      World world(own.group, options, 2, rank);
      fn(world, own);
    } catch (const Error& e) {
      ADD_FAILURE() << "rank " << rank << ": " << e.what();
    }
  };
  std::thread other([&] {
    run(1, std::make_shared<RendezvousClient>(options_of(1, zero->port()), deadline_after(10s)));
  });
  run(0, zero);
  other.join();
}

// Rank 0's last messages take a second; its farewell by the rendezvous does not.
TEST(Farewell, ComesBehindTheLastMessages) {
  const auto wires = std::make_shared<Wires>();
  on_two(wires, ProgressThread::never, [&](World& world, RankOfTwo&) {
    world.group().barrier()->wait();
    if (world.rank() == 0) wires->delay = 1000ms;
    if (world.rank() == 0) {
      world.group().send(full({10'000}, 3), 1)->wait();
      return world.finish();
    }
    const Tensor x = zeros({10'000});
    world.group().recv(x, 0)->wait();
    EXPECT_EQ(x.data<float>()[9'999], 3);
    // And one that never comes is known to be missing at once.
    const auto begin = Clock::now();
    try {
      world.group().recv(x, 0)->wait();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const PeerFailed& e) {
      EXPECT_NE(std::string(e.what()).find("rank 0 returned while rank 1 waits"), std::string::npos)
          << e.what();
    }
    EXPECT_LT(Clock::now() - begin, 5s);
  });
}

// Works whose handles are dropped have messages under way when the group fails on the progress
// thread: they end without the lock that it holds.
TEST(MessageFailure, EndsWorksThatNobodyHolds) {
  for (const ProgressThread progress : {ProgressThread::always, ProgressThread::never}) {
    const auto wires = std::make_shared<Wires>();
    on_two(wires, progress, [&](World& world, RankOfTwo& own) {
      world.group().barrier()->wait();
      world.group().set_timeout(5s);
      ++wires->past_barrier;
      if (world.rank() == 1) {
        std::this_thread::sleep_for(200ms);
        own.comm->fail_world("it was told to");
        return;
      }
      while (wires->past_barrier < 2) std::this_thread::sleep_for(1ms);
      {
        const std::lock_guard guard(wires->mutex);
        wires->cut = true;
      }
      const Tensor x = zeros({100'000}), y = zeros({100'000}), z = zeros({100'000});
      (void)world.group().all_reduce(x);
      (void)world.group().all_reduce(y);
      (void)world.group().send(z, 1);
      const auto begin = Clock::now();
      EXPECT_THROW(world.finish(), PeerFailed);
      EXPECT_LT(Clock::now() - begin, 4s);
    });
  }
}

TEST(MessageGroups, RanksThatMakeDifferentOnesAreTold) {
  on_two(std::make_shared<Wires>(), ProgressThread::never, [&](World& world, RankOfTwo&) {
    const std::array<const char*, 2> names{"dp", "tp"};
    const int mine = world.rank(), other = 1 - mine;
    EXPECT_EQ(
        test::error_of([&] {
          (void)world.group().subgroup(std::vector<int>{0, 1}, names[static_cast<size_t>(mine)]);
        }),
        concat("[process_group] ranks disagree on the group they make: rank ", mine, ": '",
               names[static_cast<size_t>(mine)], "', rank ", other, ": '",
               names[static_cast<size_t>(other)], "'; make groups in the same order on all ranks"));
    world.group().barrier()->wait();
  });
}

TEST(MessageGroups, ThereAreAsManyAsTheTagsOfMpiTell) {
  const auto wires = std::make_shared<Wires>();
  wires->largest_tag = Messages::kFirstGroupTag + 1;  // of the world alone
  on_two(wires, ProgressThread::never, [&](World& world, RankOfTwo&) {
    EXPECT_EQ(test::error_of([&] {
                (void)world.group().subgroup(std::vector<int>{0, 1}, "tp");
              }),
              "[process_group] group 'tp' is number 1: this MPI has tags for fewer; make groups "
              "once and keep them");
    world.group().barrier()->wait();
  });
}

}  // namespace
}  // namespace tessera
