// SPDX-License-Identifier: Apache-2.0
// State that ranks of a group or world read from each other while they wait: its first failure,
// which ranks have left, which rank waits for which. Plain data that is valid when zero, in memory
// that threads share by address and processes by a mapped segment.
#pragma once

#include "tessera/dist/process_group/process_group.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <exception>

namespace tessera {

enum class FailureKind : uint32_t { none, peer, timeout, mismatch };

/// The first failure of a group or world; written once, by the first rank that claims it.
struct Failure {
  std::atomic<uint32_t> state;  // 0 none, 1 being written, 2 readable
  FailureKind kind;
  int32_t rank;  // world rank that caused it
  std::array<char, 2036> text;

  [[nodiscard]] bool happened() const { return state.load(std::memory_order_seq_cst) != 0; }
  /// False if there was an earlier failure.
  bool claim(FailureKind of, int world_rank, std::string_view why);
  /// Whether its text is here: its writer may be in the middle of a copy.
  [[nodiscard]] bool readable() const { return state.load(std::memory_order_acquire) == 2; }
  /// Waits for the text, then throws the typed error.
  [[noreturn]] void raise(std::string_view where) const;
  /// The typed error, without waiting.
  [[nodiscard]] std::exception_ptr error(std::string_view where) const;
};

/// Board of a world (or of its ranks on one host): which ranks have left, and why the world ended.
struct WorldBoard {
  Failure failure;
  struct alignas(64) Rank {
    std::atomic<uint32_t> left;       // the rank will start nothing more
    std::atomic<int32_t> waits_for;   // 1 + the world rank that it waits for; 0: it does not wait
    std::atomic<uint64_t> operation;  // sequence << 8 | kind of what it started last
  };
  static size_t bytes(int world_size) {
    return sizeof(WorldBoard) + sizeof(Rank) * static_cast<size_t>(world_size);
  }
  [[nodiscard]] Rank& rank(int world_rank) { return reinterpret_cast<Rank*>(this + 1)[world_rank]; }
};

/// Header of a group whose members share memory: its failure, and the futex on which they sleep.
struct SegmentHeader {
  Failure failure;
  alignas(64) std::atomic<uint32_t> event;  // futex: counts changes that sleeping ranks wait for
  alignas(64) std::atomic<uint32_t> sleepers;
};

}  // namespace tessera
