// SPDX-License-Identifier: Apache-2.0
// The shared data of a group's members: plain data in memory that threads share by address and
// processes by a mapped segment (at different addresses, so with offsets instead of pointers; only
// threads use the payload addresses). All of it is valid when zero, so a new mapping needs no
// initialisation. SegmentLayout has the offsets.
#pragma once

#include "tessera/dist/process_group/board_impl.h"
#include "tessera/dist/process_group/signature_impl.h"

#include <array>
#include <atomic>
#include <cstddef>

namespace tessera {

/// One rank's announcement of one collective. Two per rank: a rank can be at most one collective
/// ahead of the slowest reader.
struct Announcement {
  Signature signature;
  int64_t extent;      // bytes that must pass through this rank's staging, see SharedGroup
  uint64_t in, out;    // addresses, for threads
  uint32_t is_inline;  // the payload is in the cell
};

struct alignas(64) Cell {
  // Written by the owner, read by all.
  std::atomic<uint64_t> arrived;   // sequence number of the latest announcement
  std::atomic<uint64_t> written;   // rounds of staging filled so far, in this group's life
  std::atomic<uint64_t> reduced;   // rounds whose share has been reduced
  std::atomic<uint64_t> read;      // rounds after which the owner needs no more data of its peers
  std::atomic<uint32_t> touching;  // the owner is using its peers' tensors
  alignas(64) std::array<Announcement, 2> announcements;
};

/// Says that this rank is in others' tensors, however it leaves them.
class Touching {
 public:
  explicit Touching(std::atomic<uint32_t>& flag) : flag_(flag) {
    flag_.store(1, std::memory_order_seq_cst);
  }
  ~Touching() { flag_.store(0, std::memory_order_seq_cst); }
  Touching(const Touching&) = delete;
  Touching& operator=(const Touching&) = delete;

 private:
  std::atomic<uint32_t>& flag_;
};

/// A message from one rank to another, or a piece of one, in a ring of them. Its entry serves the
/// next message when its bytes have been copied, in whatever order that comes to pass.
enum class Place : uint8_t { slot, pool, tensor };
struct alignas(64) Entry {
  std::atomic<uint64_t> taken;   // 1 + the number of the last message here that has been copied
  std::atomic<uint64_t> filled;  // bytes that can be copied: a pool is filled while it is read
  int64_t count, tag;            // of the whole message
  int64_t begin, bytes;          // of what is here
  uint64_t where;                // of a pool: offset in the segment; of a tensor: its address
  DType dtype;
  Place place;
};
struct alignas(64) Channel {
  std::atomic<uint64_t> written;                  // entries
  alignas(64) std::atomic<uint64_t> slots_taken;  // slots are taken in their order
  std::atomic<int64_t> awaited;  // 1 + the tag of a recv that lacks its message alone; 0: none
};

/// Offsets in the segment of a group of `n` ranks, in bytes. Each rank has a pool of `pool` bytes
/// for messages that it leaves for others.
class SegmentLayout {
 public:
  static constexpr size_t kInlineBytes = 16 * 1024;
  static constexpr size_t kSlots = 4, kStagingBytes = 128 * 1024;  // all slots stay in a core's L2
  static constexpr size_t kEntries = 256, kRing = 4, kRingBytes = 32 * 1024;

  SegmentLayout(int n, size_t pool) : n_(static_cast<size_t>(n)) {
    inline_ = align(sizeof(Cell), 64);
    counts_ = inline_ + 2 * kInlineBytes;
    staging_ = align(counts_ + 2 * n_ * sizeof(int64_t), 4096);
    channels_ = staging_ + kSlots * kStagingBytes;
    channel_stride_ = sizeof(Channel) + kEntries * sizeof(Entry) + kRing * kRingBytes;
    pool_ = align(channels_ + n_ * channel_stride_, 4096);
    stride_ = pool_ + align(pool, 4096);
    header_ = align(sizeof(SegmentHeader), 4096);
  }
  [[nodiscard]] size_t bytes() const { return header_ + n_ * stride_; }
  [[nodiscard]] size_t cell(int rank) const {
    return header_ + static_cast<size_t>(rank) * stride_;
  }
  [[nodiscard]] size_t payload(int rank, size_t parity) const {
    return cell(rank) + inline_ + parity * kInlineBytes;
  }
  [[nodiscard]] size_t counts(int rank, size_t parity) const {
    return cell(rank) + counts_ + parity * n_ * sizeof(int64_t);
  }
  [[nodiscard]] size_t staging(int rank, uint64_t round) const {
    return cell(rank) + staging_ + round % kSlots * kStagingBytes;
  }
  [[nodiscard]] size_t channel(int from, int to) const {
    return cell(from) + channels_ + static_cast<size_t>(to) * channel_stride_;
  }
  [[nodiscard]] size_t entry(int from, int to, uint64_t number) const {
    return channel(from, to) + sizeof(Channel) + number % kEntries * sizeof(Entry);
  }
  [[nodiscard]] size_t slot(int from, int to, uint64_t number) const {
    return channel(from, to) + channel_stride_ - (kRing - number % kRing) * kRingBytes;
  }
  [[nodiscard]] size_t pool(int rank) const { return cell(rank) + pool_; }

 private:
  static size_t align(size_t x, size_t to) { return (x + to - 1) / to * to; }
  size_t n_, header_, inline_, counts_, staging_, channels_, channel_stride_, pool_, stride_;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace tessera
