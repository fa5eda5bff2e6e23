// SPDX-License-Identifier: Apache-2.0
// Host and process of a rank. A host is one running kernel and one process-id namespace: processes
// that can see each other in /proc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

struct RankPlace {
  std::string host;      ///< equal for processes that can share memory
  std::string hostname;  ///< for people
  int64_t pid = 0;
  uint64_t started = 0;  ///< tells a process from a later one with its id

  static RankPlace own();
  /// Of a process of this host.
  static RankPlace of(int64_t pid);
  [[nodiscard]] std::string pack() const;
  static RankPlace unpack(std::string_view bytes);
};

/// State of a process of this host, from /proc.
enum class ProcessState : uint8_t { running, stopped, gone };
[[nodiscard]] ProcessState process_state(int64_t pid, uint64_t started);

}  // namespace tessera
