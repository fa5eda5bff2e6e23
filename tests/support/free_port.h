// SPDX-License-Identifier: Apache-2.0
// For tests that start worlds of processes by themselves.
#pragma once

#include "tessera/dist/rendezvous/socket_impl.h"

#include <atomic>
#include <unistd.h>

namespace tessera::test {

/// A port that nobody listens at, below those that the system gives to connections. Processes of
/// one test run begin at different ones.
inline int free_port() {
  static std::atomic<int> next{getpid() % 499 * 40};
  while (true) {
    const int port = 10'000 + next++ % 20'000;
    try {
      (void)listen_at("localhost", port, "");
      return port;
    } catch (const LaunchError&) {
    }
  }
}

}  // namespace tessera::test
