// SPDX-License-Identifier: Apache-2.0
// For tests: worlds of rendezvous clients on threads of one process.
#pragma once

#include "tessera/dist/rendezvous/rendezvous_impl.h"

#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace tessera::test {

inline RendezvousClient::Options client_options(int rank, int size, int port,
                                                const std::string& secret = "s") {
  return {.rank = rank,
          .size = size,
          .host = "localhost",
          .secret = secret,
          .port = port,
          .remedy = "choose another MASTER_PORT"};
}

/// Runs fn(client) for every rank of a fresh world, each on a thread; rank 0 finds the port.
template <class Fn> void in_client_world(int size, Fn fn) {
  constexpr std::chrono::seconds kPatience(10);
  RendezvousClient zero(client_options(0, size, 0), deadline_after(kPatience));
  std::vector<std::thread> threads;
  for (int rank = 1; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      RendezvousClient client(client_options(rank, size, zero.port()), deadline_after(kPatience));
      fn(client);
    });
  }
  fn(zero);
  for (std::thread& thread : threads) thread.join();
}

/// 0 to n - 1.
inline std::vector<int> first_ranks(int n) {
  std::vector<int> ranks(static_cast<size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace tessera::test
