// SPDX-License-Identifier: Apache-2.0
// The caching allocator of one CUDA stream. A freed block is used again at once by the same stream,
// whose order keeps both users apart, so that neither the host nor the device waits. A block that
// other streams have used waits until events say that they are done with it.
//
// TESSERA_NO_CUDA_MEMORY_CACHING=1 takes and frees each block by itself (cudaMallocAsync), for
// compute-sanitizer and its like, which do not see into an arena.
#pragma once

#include "tessera/core/arena_impl.h"
#include "tessera/core/cuda/device_memory_impl.h"

#include <deque>
#include <map>
#include <memory>
#include <vector>

namespace tessera {

class StreamAllocator final : public Allocator {
 public:
  /// Blocks of `memory`'s device that `user` uses and that `stream` fills before, in the order of
  /// `stream`. Both are the same unless `stream` copies for `user`.
  StreamAllocator(DeviceMemory& memory, cudaStream_t stream, cudaStream_t user);
  /// For what is captured on the stream of `parent`: of the parent's memory, and of nobody else
  /// until the last block and the last handle are gone. Has `reserve` bytes at once, and takes what
  /// it needs beyond from the memory that `parent` has cached. StorageError: the device has no such
  /// `reserve`.
  StreamAllocator(const Ref<StreamAllocator>& parent, int64_t reserve);
  ~StreamAllocator() override;

  void* allocate(int64_t bytes) override;
  void free(void* block, int64_t bytes) noexcept override;
  void empty_cache() override;
  [[nodiscard]] MemoryStats stats() const override;
  void reset_peak() override;

  /// While the stream is captured: gives no blocks, and calls nothing that a capture forbids.
  void hold(bool on) noexcept;
  /// The capture has ended, so there are no more blocks for it.
  void close() noexcept;

  // Under the lock of the device's memory:
  /// Whose blocks they are.
  [[nodiscard]] cudaStream_t user() const { return user_; }
  [[nodiscard]] bool holds(const std::byte* address) const;
  /// Bytes taken from the device.
  [[nodiscard]] int64_t reserved() const { return parent_ ? 0 : arena_.reserved(); }
  /// `stream` uses these bytes, which lie in a block, until the block is freed.
  void add_use(const std::byte* begin, int64_t bytes, cudaStream_t stream);
  /// The streams of add_use() that used some of these bytes.
  [[nodiscard]] std::vector<cudaStream_t> users_of(const std::byte* begin, int64_t bytes) const;
  /// Gives free segments back to the device, also those of blocks that other streams still use.
  void release();

 private:
  struct Use {
    const std::byte* begin;
    int64_t bytes;
    cudaStream_t stream;
  };
  /// A freed block that other streams have used, until their events have fired.
  struct Waiting {
    std::byte* block;
    int64_t size;
    std::vector<cudaStream_t> streams;  // that have no event yet: they are captured
    std::vector<cudaEvent_t> events;
  };
  class OfDevice;
  class OfParent;
  [[nodiscard]] std::byte* take(int64_t size);
  void put_back(std::byte* block, int64_t size) noexcept;
  [[nodiscard]] std::vector<cudaStream_t> end_uses(const std::byte* block, int64_t size);
  void record(Waiting& freed) const noexcept;
  [[nodiscard]] bool idle(const Waiting& freed) const noexcept;
  void take_back(Waiting& freed) noexcept;
  void take_back_all() noexcept;

  const Ref<StreamAllocator> parent_;  // of a capture's
  DeviceMemory& memory_;
  const cudaStream_t stream_, user_;
  bool held_ = false, closed_ = false;
  std::unique_ptr<SegmentSource> source_;
  Arena arena_;
  std::map<std::byte*, int64_t, std::less<>> uncached_;  // blocks in use that are of no arena
  std::vector<Use> uses_;
  std::deque<Waiting> waiting_;
};

}  // namespace tessera
