// SPDX-License-Identifier: Apache-2.0
// What the ranks of a communicator share, threads and processes of one host alike: a file that lies
// in memory alone and ends with the last process that has it open. Every word that several ranks
// use is an atomic, or is written before the atomic that tells of it, so a rank that dies within a
// call blocks nobody. Zero bytes are the empty state of everything.
#pragma once

#include "nccl.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace nccl_emulation {

constexpr int kMostRanks = 4;                      // each has an emulated device of its own
constexpr size_t kChannelBytes = size_t{4} << 30;  // addresses; memory is taken as it is written
constexpr size_t kMostIssued = 1024, kMostSplits = 1024;  // of one communicator

enum class Kind { all_reduce, reduce, broadcast, all_gather, reduce_scatter, send, recv };

struct Call {
  Kind kind;
  const char* from;
  char* to;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer;  // root, or the other rank of a message; -1: none
  cudaStream_t stream;
  uint64_t number = 0;  // among the collectives of its rank, or the messages from one to the other
  bool sent = false, done = false;

  bool message() const { return kind == Kind::send || kind == Kind::recv; }
  bool agrees(const Call& o) const {
    return kind == o.kind && count == o.count && type == o.type && op == o.op && peer == o.peer;
  }
};

/// A call as its peers read it: without memory and stream.
class Described {
 public:
  void write(const Call& call);
  /// None while another call than that of `number` stands here.
  [[nodiscard]] std::optional<Call> read(uint64_t number) const;

 private:
  std::atomic<uint64_t> number_, count_, rest_;
};

/// Bytes on their way from a rank to one other or to all.
struct Channel {
  Described call;
  std::atomic<uint64_t> sent;              // number of the call whose bytes lie here
  std::atomic<uint64_t> read[kMostRanks];  // the last number that each rank has read
};

/// A rank's part in a split.
struct Splitting {
  std::atomic<bool> written;
  int color, key;
  ncclUniqueId id;  // of the board that the new communicator has if this rank is its first
};

struct Board {
  ncclUniqueId id;
  uint64_t first;                       // sums start from this rank, modulo the size
  std::atomic<int> size;                // 0: nobody has joined
  std::atomic<int> joined[kMostRanks];  // its device + 1
  std::atomic<bool> called[kMostRanks]
                          [kMostRanks];  // who has called a message to whom; itself: a collective
  std::atomic<int> finalized;
  std::atomic<int> failed;  // 0, 1 while the text is written, then 2 + the code
  char failure[1024];
  Described issued[kMostRanks][kMostIssued];  // the last collectives that each rank has issued
  Splitting splits[kMostSplits][kMostRanks];
  Channel channels[kMostRanks][kMostRanks];  // from, to; to itself: collectives, read by all
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

/// A board in this process's addresses.
class SharedBoard {
 public:
  /// Null if the system has no memory left.
  [[nodiscard]] static std::shared_ptr<SharedBoard> make(uint64_t random);
  /// Null once the process that made it has closed it.
  [[nodiscard]] static std::shared_ptr<SharedBoard> open(const ncclUniqueId& id);
  ~SharedBoard();
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;

  Board* operator->() const { return board_; }
  [[nodiscard]] Board* get() const { return board_; }
  /// `kChannelBytes` of a channel.
  [[nodiscard]] char* bytes(int from, int to) const;

 private:
  explicit SharedBoard(int file);

  int file_;
  Board* board_ = nullptr;
};

}  // namespace nccl_emulation
