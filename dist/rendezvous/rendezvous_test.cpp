// SPDX-License-Identifier: Apache-2.0
// The rendezvous with clients on threads of one process: exchanges, farewells and deaths, and every
// way in which the other end can be the wrong one.
#include "tessera/core/error.h"
#include "tessera/dist/rendezvous/wire_impl.h"
#include "tessera/tests/support/rendezvous_world.h"

#include <gtest/gtest.h>

#include <future>
#include <sys/resource.h>

namespace tessera {
namespace {

using namespace std::chrono_literals;
using test::client_options;
using test::first_ranks;
using test::in_client_world;

// Of the exception that is being handled.
template <class E> bool is_of_type() {
  try {
    throw;
  } catch (const E&) {
    return true;
  } catch (...) {
    return false;
  }
}

template <class E, class Fn> std::string message_of(Fn fn) {
  try {
    fn();
  } catch (const Error& error) {
    if (is_of_type<E>()) return error.what();
    return concat("another type: ", error.kind(), ' ', error.what());
  }
  return "nothing was thrown";
}

void expect_says(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' not in: " << message;
}

TEST(Rendezvous, Exchanges) {
  in_client_world(5, [](RendezvousClient& client) {
    const auto all = first_ranks(5);
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
  RendezvousClient zero(client_options(0, 3, 0), deadline_after(10s));
  RendezvousClient one(client_options(1, 3, zero.port()), deadline_after(10s));
  expect_says(message_of<CollectiveTimeout>([&] {
                (void)zero.all_gather(first_ranks(3), "start", "", deadline_after(50ms));
              }),
              {"rank 1,", "rank 2 (never joined)", "start"});
}

TEST(Rendezvous, NamesWhoLeftOrDied) {
  RendezvousClient zero(client_options(0, 3, 0), deadline_after(10s));
  RendezvousClient one(client_options(1, 3, zero.port()), deadline_after(10s));
  std::thread leaver([port = zero.port()] {
    RendezvousClient two(client_options(2, 3, port), deadline_after(10s));
  });
  expect_says(message_of<PeerFailed>(
                  [&] { (void)zero.all_gather(first_ranks(3), "start", "", deadline_after(10s)); }),
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
  in_client_world(2, [](RendezvousClient& client) {
    const auto all = first_ranks(2);
    client.barrier(all, "joined", deadline_after(10s));
    const std::string text = message_of<CollectiveMismatch>([&] {
      (void)client.all_gather(all, client.rank() == 0 ? "pair" : "all", "", deadline_after(20s));
    });
    expect_says(text, {"rank 0", "rank 1", "'pair", "'all", "same order"});
    client.barrier(all, "end", deadline_after(10s));
  });
}

TEST(Rendezvous, WaitingCanBeInterrupted) {
  RendezvousClient zero(client_options(0, 2, 0), deadline_after(10s));
  zero.interrupted = [] { fail<PeerFailed>("test", "rank 1 is ill"); };
  expect_says(message_of<PeerFailed>(
                  [&] { (void)zero.all_gather(first_ranks(2), "start", "", deadline_after(20s)); }),
              {"rank 1 is ill"});
}

TEST(Rendezvous, ServerGoneIsAnError) {
  auto zero = std::make_unique<RendezvousClient>(client_options(0, 2, 0), deadline_after(10s));
  RendezvousClient one(client_options(1, 2, zero->port()), deadline_after(10s));
  std::thread leaver([&] { zero.reset(); });
  expect_says(message_of<PeerFailed>(
                  [&] { (void)one.all_gather(first_ranks(2), "start", "", deadline_after(10s)); }),
              {"rank 0"});
  leaver.join();
  EXPECT_EQ(one.lost().rank, 0);
}

// Rank 0 lets rank 1 in and says nothing more, then it is gone.
TEST(Rendezvous, ASilentServerIsAnErrorAndSoIsADeadOne) {
  Door door(listen_at("localhost", 0, ""), {.secret = "s", .name = "rendezvous"});
  std::promise<void> silent, gone;
  std::thread rank_one([&, port = door.listening().port] {
    RendezvousClient one(client_options(1, 2, port), deadline_after(10s));
    const auto gather = [&](Deadline deadline) {
      return message_of<Error>([&] { (void)one.all_gather(first_ranks(2), "ids", "", deadline); });
    };
    EXPECT_EQ(gather(deadline_after(20ms)),
              "[launch] exchange 'ids': rank 0, which serves it, is silent");
    silent.set_value();
    gone.get_future().wait();
    EXPECT_EQ(gather(deadline_after(10s)),
              "[launch] exchange 'ids': rank 0, which serves it, died or left");
  });
  std::vector<Door::Guest> guests;
  while (guests.empty()) {
    guests = door.admit();
    std::this_thread::sleep_for(1ms);
  }
  Door::welcome(guests[0]);
  silent.get_future().wait();
  guests.clear();
  gone.set_value();
  rank_one.join();
}

TEST(Rendezvous, AServerWithoutFileDescriptorsSaysSo) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizers open pipes of their own, to look at objects";
#endif
  Door door(listen_at("localhost", 0, ""), {.secret = "s", .name = "rendezvous"});
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{0, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  const std::string error = message_of<LaunchError>(
      [&] { const RendezvousServer server(std::move(door), 2, Descriptor()); });
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(error, "[launch] no file descriptors left for the rendezvous");
}

TEST(Rendezvous, NoticesAndStatus) {
  in_client_world(3, [](RendezvousClient& client) {
    const auto all = first_ranks(3);
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
  RendezvousClient zero(client_options(0, 2, 0), deadline_after(10s));
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
  in_client_world(2, [&](RendezvousClient& client) {
    const auto all = first_ranks(2);
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
  expect_says(message_of<LaunchError>([&] {
                RendezvousClient zero(client_options(0, 2, taken.port), deadline_after(1s));
              }),
              {port.c_str(), "in use", "MASTER_PORT"});
}

TEST(Rendezvous, NobodyThere) {
  const int port = listen_at("localhost", 0, "").port;
  expect_says(message_of<LaunchError>(
                  [&] { RendezvousClient one(client_options(1, 2, port), deadline_after(100ms)); }),
              {"rank 0 cannot be reached", "localhost", "MASTER_PORT"});
}

TEST(Rendezvous, AnotherProgramThere) {
  const Listening mute = listen_at("localhost", 0, "");
  expect_says(message_of<LaunchError>([&] {
                RendezvousClient one(client_options(1, 2, mute.port), deadline_after(100ms));
              }),
              {"is not rank 0 of this job", "does not answer"});
}

TEST(Rendezvous, ListensOnlyAtItsAddress) {
  const auto address_at = [](const std::string& host, const std::string& bind, bool one_host) {
    RendezvousClient::Options options = client_options(0, 1, 0);
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
  RendezvousClient zero(client_options(0, 2, 0), deadline_after(10s));
  RendezvousClient::Options elsewhere = client_options(1, 2, zero.port());
  elsewhere.host = "127.0.0.3";
  expect_says(
      message_of<LaunchError>([&] { RendezvousClient one(elsewhere, deadline_after(50ms)); }),
      {"cannot be reached", "127.0.0.3"});
}

TEST(Rendezvous, AnotherWorldSize) {
  RendezvousClient zero(client_options(0, 2, 0), deadline_after(10s));
  expect_says(message_of<LaunchError>([&] {
                RendezvousClient one(client_options(1, 3, zero.port()), deadline_after(10s));
              }),
              {"rank 1 of 3", "a world of 2 ranks"});
  expect_says(message_of<LaunchError>(
                  [&] { (void)zero.all_gather(first_ranks(2), "start", "", deadline_after(10s)); }),
              {"rank 1 of 3", "a world of 2 ranks"});
}

TEST(Rendezvous, TheSameRankTwice) {
  RendezvousClient zero(client_options(0, 3, 0), deadline_after(10s));
  RendezvousClient one(client_options(1, 3, zero.port()), deadline_after(10s));
  expect_says(message_of<LaunchError>([&] {
                RendezvousClient again(client_options(1, 3, zero.port()), deadline_after(10s));
              }),
              {"two processes", "rank 1 of 3"});
  expect_says(message_of<LaunchError>(
                  [&] { (void)one.all_gather(first_ranks(3), "start", "", deadline_after(10s)); }),
              {"two processes"});
}

TEST(Rendezvous, AnotherJobsRankIsRefusedAtOnceAndChangesNothing) {
  RendezvousClient zero(client_options(0, 3, 0, "mine"), deadline_after(10s));
  expect_says(message_of<LaunchError>([&] {
                RendezvousClient one(client_options(1, 3, zero.port(), "theirs"),
                                     deadline_after(60s));
              }),
              {"another job", "MASTER_PORT", "TESSERA_JOB_TOKEN"});
  RendezvousClient one(client_options(1, 3, zero.port(), "mine"), deadline_after(10s));
  std::thread other([&] { one.barrier(first_ranks(2), "pair", deadline_after(10s)); });
  zero.barrier(first_ranks(2), "pair", deadline_after(10s));
  other.join();
  expect_says(message_of<CollectiveTimeout>(
                  [&] { (void)zero.all_gather(first_ranks(3), "all", "", deadline_after(50ms)); }),
              {"rank 2 (never joined)", "another job", "tried to join"});
}

TEST(Rendezvous, AnotherJobsRankZeroIsToldWhoListensThere) {
  RendezvousClient mine(client_options(0, 2, 0, "mine"), deadline_after(10s));
  expect_says(message_of<LaunchError>([&] {
                RendezvousClient theirs(client_options(0, 2, mine.port(), "theirs"),
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
        RendezvousClient client(client_options(rank, size, port), deadline_after(60s));
        client.barrier(first_ranks(size), "join", deadline_after(60s));
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
  in_client_world(2, [](RendezvousClient& client) {
    client.barrier(first_ranks(2), "joined", deadline_after(10s));
    if (client.rank() == 0) {
      for (const int size : {2, 3}) {
        EXPECT_NE(message_of<LaunchError>([&] {
                    RendezvousClient late(client_options(1, size, client.port()),
                                          deadline_after(60s));
                  }).find("MASTER_PORT"),
                  std::string::npos);
      }
    }
    client.barrier(first_ranks(2), "end", deadline_after(10s));
  });
}

}  // namespace
}  // namespace tessera
