// SPDX-License-Identifier: Apache-2.0
// The rendezvous with clients on threads of one process: exchanges, farewells and deaths, and every
// way in which the other end can be the wrong one.
#include "tessera/core/error.h"
#include "tessera/dist/rendezvous/rendezvous_impl.h"
#include "tessera/dist/rendezvous/wire_impl.h"

#include <gtest/gtest.h>

#include <numeric>

namespace tessera {
namespace {

using namespace std::chrono_literals;

RendezvousClient::Options options_of(int rank, int size, int port,
                                     const std::string& secret = "s") {
  return {.rank = rank,
          .size = size,
          .host = "localhost",
          .secret = secret,
          .port = port,
          .remedy = "choose another MASTER_PORT"};
}

// Runs fn(client) for every rank of a fresh world, each on a thread; rank 0 finds the port.
template <class Fn> void in_world(int size, Fn fn) {
  RendezvousClient zero(options_of(0, size, 0), deadline_after(10s));
  std::vector<std::thread> threads;
  for (int rank = 1; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      RendezvousClient client(options_of(rank, size, zero.port()), deadline_after(10s));
      fn(client);
    });
  }
  fn(zero);
  for (std::thread& thread : threads) thread.join();
}

template <class E, class Fn> std::string message_of(Fn fn) {
  try {
    fn();
  } catch (const E& error) {
    return error.what();
  } catch (const Error& error) {
    return concat("another type: ", error.kind(), ' ', error.what());
  }
  return "nothing was thrown";
}

void expect_says(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' not in: " << message;
}

std::vector<int> first(int n) {
  std::vector<int> ranks(static_cast<size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

TEST(Rendezvous, Exchanges) {
  in_world(5, [](RendezvousClient& client) {
    const auto all = first(5);
    for (int round = 0; round < 20; ++round) {
      const std::string mine(static_cast<size_t>(client.rank() * 1000 * (round % 3)), 'x');
      const auto parts = client.all_gather(all, concat("round ", round), mine, deadline_after(10s));
      ASSERT_EQ(parts.size(), 5u);
      for (size_t r = 0; r < 5; ++r)
        EXPECT_EQ(parts[r].size(), r * 1000 * static_cast<size_t>(round % 3));
    }
    // Two groups at once, in an order of their own.
    const bool odd = client.rank() % 2 != 0;
    const std::vector<int> members = odd ? std::vector{3, 1} : std::vector{4, 0, 2};
    const auto parts =
        client.all_gather(members, "half", std::to_string(client.rank()), deadline_after(10s));
    EXPECT_EQ(parts,
              (odd ? std::vector<std::string>{"3", "1"} : std::vector<std::string>{"4", "0", "2"}));
    client.barrier(all, "end", deadline_after(10s));
  });
}

TEST(Rendezvous, NamesWhoIsMissing) {
  RendezvousClient zero(options_of(0, 3, 0), deadline_after(10s));
  RendezvousClient one(options_of(1, 3, zero.port()), deadline_after(10s));
  expect_says(message_of<CollectiveTimeout>(
                  [&] { (void)zero.all_gather(first(3), "start", "", deadline_after(50ms)); }),
              {"rank 1,", "rank 2 (never joined)", "start"});
}

TEST(Rendezvous, NamesWhoLeftOrDied) {
  RendezvousClient zero(options_of(0, 3, 0), deadline_after(10s));
  RendezvousClient one(options_of(1, 3, zero.port()), deadline_after(10s));
  std::thread leaver(
      [port = zero.port()] { RendezvousClient two(options_of(2, 3, port), deadline_after(10s)); });
  expect_says(message_of<PeerFailed>(
                  [&] { (void)zero.all_gather(first(3), "start", "", deadline_after(10s)); }),
              {"rank 2 left"});
  leaver.join();
  EXPECT_EQ(zero.lost().rank, -1) << "who says farewell is not lost";
  const auto table = zero.table(deadline_after(10s));
  ASSERT_EQ(table.size(), 3u);
  EXPECT_EQ(table[1].state, RemoteStatus::State::connected);
  EXPECT_EQ(table[2].state, RemoteStatus::State::left);
  one.finish(false, deadline_after(10s));
}

TEST(Rendezvous, RanksThatWaitForEachOtherElsewhere) {
  in_world(2, [](RendezvousClient& client) {
    const auto all = first(2);
    client.barrier(all, "joined", deadline_after(10s));
    const std::string text = message_of<CollectiveMismatch>([&] {
      (void)client.all_gather(all, client.rank() == 0 ? "pair" : "all", "", deadline_after(20s));
    });
    expect_says(text, {"rank 0", "rank 1", "'pair", "'all", "same order"});
    client.barrier(all, "end", deadline_after(10s));
  });
}

TEST(Rendezvous, WaitingCanBeInterrupted) {
  RendezvousClient zero(options_of(0, 2, 0), deadline_after(10s));
  zero.interrupted = [] { fail<PeerFailed>("test", "rank 1 is ill"); };
  expect_says(message_of<PeerFailed>(
                  [&] { (void)zero.all_gather(first(2), "start", "", deadline_after(20s)); }),
              {"rank 1 is ill"});
}

TEST(Rendezvous, ServerGoneIsAnError) {
  auto zero = std::make_unique<RendezvousClient>(options_of(0, 2, 0), deadline_after(10s));
  RendezvousClient one(options_of(1, 2, zero->port()), deadline_after(10s));
  std::thread leaver([&] { zero.reset(); });
  expect_says(message_of<PeerFailed>(
                  [&] { (void)one.all_gather(first(2), "start", "", deadline_after(10s)); }),
              {"rank 0"});
  leaver.join();
  EXPECT_EQ(one.lost().rank, 0);
}

TEST(Rendezvous, NoticesAndStatus) {
  in_world(3, [](RendezvousClient& client) {
    const auto all = first(3);
    client.barrier(all, "joined", deadline_after(10s));
    client.publish(static_cast<uint64_t>(client.rank() + 7), "all_reduce");
    client.notify(concat("hello from ", client.rank()));
    client.barrier(all, "said", deadline_after(10s));
    const auto notices = client.take_notices();
    ASSERT_EQ(notices.size(), 2u);
    for (const auto& notice : notices) {
      EXPECT_NE(notice.from, client.rank());
      EXPECT_EQ(notice.text, concat("hello from ", notice.from));
    }
    const auto table = client.table(deadline_after(10s));
    ASSERT_EQ(table.size(), 3u);
    for (size_t r = 0; r < 3; ++r) {
      EXPECT_EQ(table[r].sequence, r + 7);
      EXPECT_EQ(table[r].operation, "all_reduce");
    }
    client.barrier(all, "end", deadline_after(10s));
  });
}

// The others learn what a rank told last before it died.
TEST(Rendezvous, ALostRankIsKnownByItsLastStatus) {
  RendezvousClient zero(options_of(0, 2, 0), deadline_after(10s));
  // A process that dies says no farewell.
  Knock knock(connect_to("localhost", zero.port(), deadline_after(10s), ""), "s", "rendezvous", 1,
              2);
  const auto end = deadline_after(10s);
  while (knock.advance() == Knock::State::waits && std::chrono::steady_clock::now() < end)
    wait_readable(knock.fd(), 10);
  {
    FrameStream stream = knock.take();
    stream.send(wire::kStatus, PackedWriter().put(uint64_t{0x1203}).text("1").bytes());
  }
  while (zero.lost().rank < 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(1ms);
  const RendezvousClient::Lost lost = zero.lost();
  EXPECT_EQ(lost.rank, 1);
  EXPECT_EQ(lost.status.sequence, 0x1203u);
  EXPECT_EQ(lost.status.operation, "1");
}

// A frame that the other end would take for garbage is not sent.
TEST(Rendezvous, ExchangesHaveALargestSize) {
  const std::string most(FrameStream::kMaxFrame, 'x'), half(FrameStream::kMaxFrame / 2, 'x');
  in_world(2, [&](RendezvousClient& client) {
    const auto all = first(2);
    client.barrier(all, "joined", deadline_after(10s));
    expect_says(message_of<LaunchError>(
                    [&] { (void)client.all_gather(all, "large", most, deadline_after(10s)); }),
                {"a message of 16777", "at most 16777216 can be sent"});
    expect_says(message_of<PeerFailed>(
                    [&] { (void)client.all_gather(all, "halves", half, deadline_after(10s)); }),
                {"exchange 'halves': its parts have 16777", "at most 16777216"});
    client.barrier(all, "end", deadline_after(10s));
  });
}

TEST(Rendezvous, PortTaken) {
  const Listening taken = listen_at("localhost", 0, "");
  const std::string port = std::to_string(taken.port);
  expect_says(message_of<LaunchError>(
                  [&] { RendezvousClient zero(options_of(0, 2, taken.port), deadline_after(1s)); }),
              {port.c_str(), "in use", "MASTER_PORT"});
}

TEST(Rendezvous, NobodyThere) {
  const int port = listen_at("localhost", 0, "").port;
  expect_says(message_of<LaunchError>(
                  [&] { RendezvousClient one(options_of(1, 2, port), deadline_after(100ms)); }),
              {"rank 0 cannot be reached", "localhost", "MASTER_PORT"});
}

TEST(Rendezvous, AnotherProgramThere) {
  const Listening mute = listen_at("localhost", 0, "");
  expect_says(message_of<LaunchError>([&] {
                RendezvousClient one(options_of(1, 2, mute.port), deadline_after(100ms));
              }),
              {"is not rank 0 of this job", "does not answer"});
}

TEST(Rendezvous, ListensOnlyAtItsAddress) {
  const auto address_at = [](const std::string& host, const std::string& bind, bool one_host) {
    RendezvousClient::Options options = options_of(0, 1, 0);
    options.host = host;
    options.bind = bind;
    options.one_host = one_host;
    return RendezvousClient(options, deadline_after(10s)).address();
  };
  EXPECT_TRUE(is_loopback(address_at("localhost", "", false)));
  EXPECT_EQ(address_at("127.0.0.1", "", false), "127.0.0.1");
  EXPECT_EQ(address_at("127.0.0.2", "", false), "127.0.0.2");
  EXPECT_EQ(address_at("127.0.0.1", "0.0.0.0", false), "") << "all interfaces, where asked for";
  EXPECT_EQ(address_at("no.such.host.invalid", "127.0.0.1", false), "127.0.0.1");
  // 203.0.113.1 is of no host (RFC 5737).
  expect_says(message_of<LaunchError>([&] { (void)address_at("203.0.113.1", "", true); }),
              {"203.0.113.1", "not an address of this host", "MASTER_ADDR", "TESSERA_BIND_ADDR"});
}

TEST(Rendezvous, NobodyElseOfThePortsHostIsReached) {
  RendezvousClient zero(options_of(0, 2, 0), deadline_after(10s));
  RendezvousClient::Options elsewhere = options_of(1, 2, zero.port());
  elsewhere.host = "127.0.0.3";
  expect_says(
      message_of<LaunchError>([&] { RendezvousClient one(elsewhere, deadline_after(50ms)); }),
      {"cannot be reached", "127.0.0.3"});
}

TEST(Rendezvous, AnotherWorldSize) {
  RendezvousClient zero(options_of(0, 2, 0), deadline_after(10s));
  expect_says(message_of<LaunchError>([&] {
                RendezvousClient one(options_of(1, 3, zero.port()), deadline_after(10s));
              }),
              {"rank 1 of 3", "a world of 2 ranks"});
  expect_says(message_of<LaunchError>(
                  [&] { (void)zero.all_gather(first(2), "start", "", deadline_after(10s)); }),
              {"rank 1 of 3", "a world of 2 ranks"});
}

TEST(Rendezvous, TheSameRankTwice) {
  RendezvousClient zero(options_of(0, 3, 0), deadline_after(10s));
  RendezvousClient one(options_of(1, 3, zero.port()), deadline_after(10s));
  expect_says(message_of<LaunchError>([&] {
                RendezvousClient again(options_of(1, 3, zero.port()), deadline_after(10s));
              }),
              {"two processes", "rank 1 of 3"});
  expect_says(message_of<LaunchError>(
                  [&] { (void)one.all_gather(first(3), "start", "", deadline_after(10s)); }),
              {"two processes"});
}

TEST(Rendezvous, AnotherJobsRankIsRefusedAtOnceAndChangesNothing) {
  RendezvousClient zero(options_of(0, 3, 0, "mine"), deadline_after(10s));
  expect_says(message_of<LaunchError>([&] {
                RendezvousClient one(options_of(1, 3, zero.port(), "theirs"), deadline_after(60s));
              }),
              {"another job", "MASTER_PORT", "TESSERA_JOB_TOKEN"});
  RendezvousClient one(options_of(1, 3, zero.port(), "mine"), deadline_after(10s));
  std::thread other([&] { one.barrier(first(2), "pair", deadline_after(10s)); });
  zero.barrier(first(2), "pair", deadline_after(10s));
  other.join();
  expect_says(message_of<CollectiveTimeout>(
                  [&] { (void)zero.all_gather(first(3), "all", "", deadline_after(50ms)); }),
              {"rank 2 (never joined)", "another job", "tried to join"});
}

TEST(Rendezvous, AnotherJobsRankZeroIsToldWhoListensThere) {
  RendezvousClient mine(options_of(0, 2, 0, "mine"), deadline_after(10s));
  expect_says(message_of<LaunchError>([&] {
                RendezvousClient theirs(options_of(0, 2, mine.port(), "theirs"),
                                        deadline_after(60s));
              }),
              {"another job", "MASTER_PORT"});
}

// Two worlds start at one port, their ranks in any order; those that come last find no world any
// more, but must learn why.
TEST(Rendezvous, TwoWorldsOfTwoSizesAtOnePortAllFail) {
  const int port = listen_at("localhost", 0, "").port;
  std::mutex mutex;
  std::vector<std::string> messages;
  const auto rank_of = [&](int rank, int size, std::chrono::milliseconds delay) {
    return std::thread([&, rank, size, delay] {
      std::this_thread::sleep_for(delay);
      const std::string text = message_of<LaunchError>([&] {
        RendezvousClient client(options_of(rank, size, port), deadline_after(60s));
        client.barrier(first(size), "join", deadline_after(60s));
      });
      const std::lock_guard lock(mutex);
      messages.push_back(text);
    });
  };
  std::vector<std::thread> ranks;
  ranks.push_back(rank_of(0, 2, 0ms));
  ranks.push_back(rank_of(2, 3, 100ms));
  ranks.push_back(rank_of(0, 3, 200ms));
  ranks.push_back(rank_of(1, 2, 300ms));
  ranks.push_back(rank_of(1, 3, 400ms));
  for (std::thread& rank : ranks) rank.join();
  ASSERT_EQ(messages.size(), 5u);
  for (const std::string& text : messages)
    expect_says(text, {" of 3 ", "a world of 2 ranks", "MASTER_PORT"});
}

TEST(Rendezvous, ACompleteWorldIsNotEndedByAnother) {
  in_world(2, [](RendezvousClient& client) {
    client.barrier(first(2), "joined", deadline_after(10s));
    if (client.rank() == 0) {
      for (const int size : {2, 3}) {
        EXPECT_NE(message_of<LaunchError>([&] {
                    RendezvousClient late(options_of(1, size, client.port()), deadline_after(60s));
                  }).find("MASTER_PORT"),
                  std::string::npos);
      }
    }
    client.barrier(first(2), "end", deadline_after(10s));
  });
}

}  // namespace
}  // namespace tessera
