// SPDX-License-Identifier: Apache-2.0
// Connections of those who do not belong to the job: none ends it, takes a rank's place, fills the
// memory of rank 0 or stays for ever.
#include "tessera/core/error.h"
#include "tessera/dist/messages/tcp_impl.h"
#include "tessera/dist/rendezvous/rendezvous_impl.h"
#include "tessera/dist/rendezvous/wire_impl.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace tessera {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMost = 4;

Door door_of(std::chrono::milliseconds patience) {
  return {listen_at("127.0.0.1", 0, ""),
          {.secret = "s", .name = "test", .most = kMost, .patience = patience}};
}
Descriptor connected_to(const Door& door) {
  return connect_to("127.0.0.1", door.listening().port, deadline_after(10s), "");
}
Knock knock_at(const Door& door, const std::string& secret = "s",
               const std::string& name = "test") {
  return {connected_to(door), secret, name, 1, 2};
}

// Whether the door has closed this connection.
bool closed(const Descriptor& socket) {
  char byte = 0;
  const ssize_t n = ::recv(socket.get(), &byte, 1, 0);
  return n == 0 || (n < 0 && errno != EAGAIN);
}

// Calls admit() until done(); the guests that came.
template <class Done> std::vector<Door::Guest> admit_until(Door& door, Done done) {
  std::vector<Door::Guest> guests;
  for (int i = 0; i < 20'000 && !done(); ++i) {
    for (Door::Guest& guest : door.admit()) {
      Door::welcome(guest);
      guests.push_back(std::move(guest));
    }
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(done());
  return guests;
}

std::string printed(const std::function<void()>& fn) {
  testing::internal::CaptureStderr();
  fn();
  return testing::internal::GetCapturedStderr();
}

TEST(Door, LetsInWhoKnowsTheSecret) {
  Door door = door_of(10s);
  Knock knock = knock_at(door);
  const auto guests = admit_until(door, [&] { return knock.advance() == Knock::State::welcome; });
  ASSERT_EQ(guests.size(), 1u);
  EXPECT_EQ(guests[0].rank, 1);
  EXPECT_EQ(guests[0].size, 2);
  EXPECT_FALSE(door.busy());
}

TEST(Door, RefusesAnotherSecretAndProofsForAnotherDoor) {
  for (const auto& [secret, name] : {std::pair{"t", "test"}, {"", "test"}, {"s", "other"}}) {
    Door door = door_of(10s);
    Knock knock = knock_at(door, secret, name);
    const std::string line = printed([&] {
      EXPECT_TRUE(
          admit_until(door, [&] { return knock.advance() == Knock::State::refused; }).empty());
    });
    EXPECT_NE(knock.why().find("TESSERA_JOB_TOKEN"), std::string::npos) << knock.why();
    EXPECT_NE(line.find("dropped a connection from 127.0.0.1:"), std::string::npos) << line;
    EXPECT_NE(line.find("does not know the secret"), std::string::npos) << line;
    EXPECT_FALSE(door.busy());
  }
}

// The proof of one connection is none for another, as each has its own random number.
TEST(Door, RefusesAProofThatItHasSeen) {
  Door door = door_of(10s);
  std::string seen;
  {
    Door honest = door_of(10s);
    FrameStream stream(connected_to(honest));
    // A man in between: passes the frames of an honest rank to its door and keeps the proof.
    const Listening own = listen_at("127.0.0.1", 0, "");
    Knock rank(connect_to("127.0.0.1", own.port, deadline_after(10s), ""), "s", "test", 1, 2);
    int error = 0;
    FrameStream victim(accept_from(own.socket, error));
    (void)admit_until(honest, [&] {
      (void)victim.read([&](const Frame& frame) {
        if (frame.type == wire::kProof) seen = frame.payload;
        stream.send(frame.type, frame.payload);
      });
      (void)stream.read([&](const Frame& frame) { victim.send(frame.type, frame.payload); });
      return rank.advance() == Knock::State::welcome;
    });
  }
  FrameStream replay(connected_to(door));
  const Digest any{};
  replay.send(wire::kHello, PackedWriter().put(wire::kMagic).put(wire::kVersion).put(any).bytes());
  replay.send(wire::kProof, seen);
  bool refused = false;
  (void)printed([&] {
    EXPECT_TRUE(admit_until(door, [&] {
                  (void)replay.read([&](const Frame& f) { refused |= f.type == wire::kRefused; });
                  return refused;
                }).empty());
  });
}

TEST(Door, ASecretIsNeverSent) {
  const std::string secret = "a secret that is easy to find";
  const Listening spy = listen_at("127.0.0.1", 0, "");
  Knock knock(connect_to("127.0.0.1", spy.port, deadline_after(10s), ""), secret, "test", 1, 2);
  int error = 0;
  FrameStream stream(accept_from(spy.socket, error));
  std::string sent;
  bool proved = false;
  for (int i = 0; i < 10'000 && !proved; ++i) {
    (void)stream.read([&](const Frame& frame) {
      sent += frame.payload;
      proved |= frame.type == wire::kProof;
      if (!proved) stream.send(wire::kChallenge, PackedWriter().put(Digest{}).bytes());
    });
    (void)knock.advance();
  }
  EXPECT_TRUE(proved);
  EXPECT_EQ(sent.find(secret), std::string::npos);
  // Nor does the client believe a server that has no proof of its own.
  stream.send(wire::kWelcome, PackedWriter().put(Digest{}).bytes());
  for (int i = 0; i < 10'000 && knock.advance() == Knock::State::waits; ++i)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(knock.advance(), Knock::State::broken);
}

TEST(Door, DropsSilenceHalfAFrameAndOtherProtocols) {
  const uint32_t huge = 0xffffffff, too_large = 257;
  const auto bytes = [](uint32_t size) { return PackedWriter().put(size).bytes(); };
  const std::vector<std::pair<std::string, const char*>> cases{
      {"", "within 50 ms"},
      {bytes(huge).substr(0, 3), "within 50 ms"},
      {bytes(44) + "\1half a hello", "within 50 ms"},
      {bytes(huge) + '\1', "another protocol"},
      {bytes(too_large) + '\1', "another protocol"},
      {"GET / HTTP/1.1\r\n\r\n", "another protocol"},
      {bytes(0) + '\1', "another program"},
      {bytes(12) + '\1' + std::string(12, 'x'), "another program"},
      {bytes(12) + '\1' + PackedWriter().put(wire::kMagic).put(wire::kVersion).bytes(),
       "too short"},
  };
  for (const auto& [sent, why] : cases) {
    Door door = door_of(50ms);
    const Descriptor stranger = connected_to(door);
    ASSERT_EQ(::send(stranger.get(), sent.data(), sent.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(sent.size()));
    const std::string line =
        printed([&] { EXPECT_TRUE(admit_until(door, [&] { return closed(stranger); }).empty()); });
    EXPECT_NE(line.find(why), std::string::npos) << "'" << why << "' not in: " << line;
    EXPECT_FALSE(door.busy());
  }
}

// One that sends without end is dropped after what the system buffers, not stored.
TEST(Door, AFloodOfBytesFillsNoMemory) {
  Door door = door_of(10s);
  const Descriptor stranger = connected_to(door);
  const std::string block(1 << 16, '\xff');
  size_t sent = 0;
  (void)printed([&] {
    (void)admit_until(door, [&] {
      const ssize_t n = ::send(stranger.get(), block.data(), block.size(), MSG_NOSIGNAL);
      if (n > 0) sent += static_cast<size_t>(n);
      return n < 0 && errno != EAGAIN;
    });
  });
  EXPECT_LT(sent, size_t{64} << 20);
}

// A member may announce up to 16 MiB; what is kept is what has come.
TEST(FrameStream, KeepsNoMoreOfAFrameThanHasCome) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
  FrameStream from{Descriptor(ends[0])}, to{Descriptor(ends[1])};
  from.send(7, std::string(100'000, 'a'));
  from.send(8, "");
  from.send(9, "b");
  std::vector<int> types;
  std::vector<size_t> sizes;
  while (types.size() < 3) {
    ASSERT_TRUE(to.read([&](const Frame& frame) {
      types.push_back(frame.type);
      sizes.push_back(frame.payload.size());
    }));
    ASSERT_TRUE(from.flush());
  }
  EXPECT_EQ(types, (std::vector{7, 8, 9}));
  EXPECT_EQ(sizes, (std::vector<size_t>{100'000, 0, 1}));
  to.allow(10);
  from.send(7, "ten bytes.");
  EXPECT_TRUE(to.read([](const Frame& frame) { EXPECT_EQ(frame.payload, "ten bytes."); }));
  from.send(7, "more than that");
  EXPECT_FALSE(to.read([](const Frame&) { ADD_FAILURE() << "one above the limit"; }));
  EXPECT_TRUE(to.garbled());
}

TEST(Door, KeepsFewStrangersAndDropsTheOldest) {
  Door door = door_of(60s);
  std::vector<Descriptor> strangers;
  for (size_t i = 0; i < kMost + 3; ++i) strangers.push_back(connected_to(door));
  const std::string lines =
      printed([&] { (void)admit_until(door, [&] { return closed(strangers[2]); }); });
  EXPECT_NE(lines.find("too many connections"), std::string::npos) << lines;
  EXPECT_FALSE(closed(strangers[3]));
  Knock knock = knock_at(door);  // who knows the secret needs no free place
  (void)printed([&] {
    EXPECT_EQ(admit_until(door, [&] { return knock.advance() == Knock::State::welcome; }).size(),
              1u);
  });
}

TEST(Door, AFloodOfConnectionsFillsNoLog) {
  Door door = door_of(60s);
  const std::string lines = printed([&] {
    for (int i = 0; i < 300; ++i) {
      const Descriptor stranger = connected_to(door);
      (void)admit_until(door, [&] { return door.busy(); });
    }
    (void)admit_until(door, [&] { return !door.busy(); });
  });
  EXPECT_LT(std::ranges::count(lines, '\n'), 20) << lines;
  EXPECT_NE(lines.find("(256 dropped so far)"), std::string::npos) << lines;
}

// In a child, whose limit of open files ends before the connections do.
void starve() {
  std::vector<Descriptor> taken;
  Door door = door_of(60s);
  Knock knock = knock_at(door);
  const rlimit low{64, 64};
  setrlimit(RLIMIT_NOFILE, &low);
  while (true) {
    taken.emplace_back(dup(2));
    if (!taken.back()) break;
  }
  bool ok = door.admit().empty() && door.busy();
  std::vector<pollfd> sockets;
  door.watch(sockets);
  ok &= sockets.empty();  // else poll would return at once, for ever
  taken.clear();
  const auto guests = admit_until(door, [&] { return knock.advance() == Knock::State::welcome; });
  _exit(ok && guests.size() == 1 ? 0 : 1);
}

TEST(Door, WithoutFileDescriptorsItPausesSaysSoAndGoesOn) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizers open pipes of their own, to look at objects";
#endif
  EXPECT_EXIT(starve(), testing::ExitedWithCode(0), "accepts no connections.*Too many open files");
}

// All of them at once, before and after the ranks of a world meet.
TEST(Strangers, DoNotDisturbAWorld) {
  const auto options = [](int rank, int port) {
    return RendezvousClient::Options{.rank = rank,
                                     .size = 3,
                                     .host = "127.0.0.1",
                                     .secret = "s",
                                     .port = port,
                                     .remedy = "",
                                     .patience = 50ms};
  };
  std::vector<int> all(3);
  std::iota(all.begin(), all.end(), 0);
  const std::string lines = printed([&] {
    RendezvousClient zero(options(0, 0), deadline_after(10s));
    std::vector<Descriptor> strangers;
    const auto visit = [&] {
      for (const std::string bytes : {"", "GET / HTTP/1.1\r\n\r\n", "\xff\xff\xff\xff\1", "abc"}) {
        for (int i = 0; i < 10; ++i) {
          strangers.push_back(connect_to("127.0.0.1", zero.port(), deadline_after(10s), ""));
          (void)::send(strangers.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        }
      }
      RendezvousClient::Options wrong = options(1, zero.port());
      wrong.secret = "wrong";
      EXPECT_THROW(RendezvousClient(wrong, deadline_after(10s)), LaunchError);
    };
    visit();
    std::vector<std::thread> ranks;
    const auto work = [&](RendezvousClient& client) {
      for (int round = 0; round < 20; ++round) {
        client.barrier(all, concat("round ", round), deadline_after(10s));
        if (round == 10 && client.rank() == 0) visit();
      }
    };
    for (int rank = 1; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        RendezvousClient client(options(rank, zero.port()), deadline_after(10s));
        work(client);
      });
    }
    work(zero);
    for (std::thread& rank : ranks) rank.join();
  });
  EXPECT_NE(lines.find("dropped a connection"), std::string::npos);
}

// Ranks that tell each other these places, in an exchange of one process.
class ToldPlaces final : public Bootstrap {
 public:
  // Of `rank` of 2, where rank 0 listens at `port`; 0: each is told its own place.
  ToldPlaces(int rank, int port) : rank_(rank), port_(port) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return 2; }
  [[nodiscard]] std::string name() const override { return "told"; }
  std::vector<std::string> all_gather(std::span<const int>, std::string_view, std::string_view mine,
                                      Deadline) override {
    const std::string zero = PackedWriter().text("127.0.0.1").text("here").put(port_).bytes();
    return {port_ ? zero : std::string(mine), std::string(mine)};
  }
  bool finish(bool, Deadline) noexcept override { return true; }

 private:
  int rank_, port_;
};

std::string error_of_messages(Bootstrap& bootstrap, std::chrono::milliseconds patience) {
  return test::error_of([&] {
    const TcpMessages messages(bootstrap, {"127.0.0.1", "here", "s"}, deadline_after(patience));
  });
}

TEST(TcpMessages, ARankThatDoesNotConnectIsWaitedForUntilTheDeadline) {
  ToldPlaces zero(0, 0);
  EXPECT_EQ(error_of_messages(zero, 20ms),
            "[launch] rank 0 has no connection to 1 of the other 1 rank; open the ports between "
            "the hosts");
}

TEST(TcpMessages, ARankOfAnotherJobRefuses) {
  Door door(listen_at("127.0.0.1", 0, ""), {.secret = "t", .name = "messages of rank 0"});
  std::atomic<bool> ended{false};
  const std::string line = printed([&] {
    std::thread other([&] {
      while (!ended) {
        EXPECT_TRUE(door.admit().empty());
        std::this_thread::sleep_for(1ms);
      }
    });
    ToldPlaces one(1, door.listening().port);
    const std::string error = error_of_messages(one, 10s);
    ended = true;
    other.join();
    EXPECT_EQ(error.find("[launch] rank 0 refused rank 1: "), 0u) << error;
  });
  EXPECT_NE(line.find("does not know the secret"), std::string::npos) << line;
}

// Rank 1 by hand, with strangers before it.
TEST(Strangers, DoNotGetBetweenRanksThatExchangeMessages) {
  const std::vector<int> both{0, 1};
  const auto options = [](int rank, int port) {
    return RendezvousClient::Options{
        .rank = rank, .size = 2, .host = "127.0.0.1", .secret = "s", .port = port, .remedy = ""};
  };
  const std::string lines = printed([&] {
    RendezvousClient zero(options(0, 0), deadline_after(10s));
    std::thread rank_one([&] {
      RendezvousClient one(options(1, zero.port()), deadline_after(10s));
      const std::string mine = PackedWriter().text("127.0.0.1").text("here").put(0).bytes();
      const auto places = one.all_gather(both, "ports", mine, deadline_after(10s));
      PackedReader in(places[0]);
      EXPECT_EQ(in.text(), "127.0.0.1") << "messages listen where the rendezvous is met";
      (void)in.text();
      const int port = in.get<int>();
      const auto connect = [&] { return connect_to("127.0.0.1", port, deadline_after(10s), ""); };
      const auto ends_in = [&](Knock& knock) {
        for (int i = 0; i < 10'000 && knock.advance() == Knock::State::waits; ++i)
          wait_readable(knock.fd(), 1);
        return knock.advance();
      };
      const Descriptor silent = connect(), claims = connect();
      const int32_t rank = 1;
      (void)::send(claims.get(), &rank, sizeof(rank), MSG_NOSIGNAL);
      Knock wrong(connect(), "wrong", "messages of rank 0", 1, 2);
      EXPECT_EQ(ends_in(wrong), Knock::State::refused);
      Knock right(connect(), "s", "messages of rank 0", 1, 2);
      EXPECT_EQ(ends_in(right), Knock::State::welcome);
      const FrameStream connection = right.take();
      one.barrier(both, "connected", deadline_after(10s));
      one.barrier(both, "end", deadline_after(10s));
    });
    EXPECT_NO_THROW(TcpMessages(zero, {zero.address(), "here", "s"}, deadline_after(10s)));
    zero.barrier(both, "end", deadline_after(10s));
    rank_one.join();
  });
  EXPECT_NE(lines.find("messages of rank 0 at 127.0.0.1"), std::string::npos) << lines;
}

}  // namespace
}  // namespace tessera
