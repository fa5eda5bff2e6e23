// SPDX-License-Identifier: Apache-2.0
// Blocks of any size, cut from large segments of memory. A block is the best fit of the free
// ranges; the rest of its range stays free, and free neighbours are joined, so memory freed in one
// size serves any other. Small blocks are kept by size first, which costs a few instructions, and
// are joined when nothing else fits. The memory itself is never touched: it may be a device's.
#pragma once

#include "tessera/core/api.h"
#include "tessera/core/block_size_impl.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace tessera {

/// Where an arena's segments come from.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  /// `bytes` bytes (a multiple of kSegmentUnit), or null where there are no more.
  virtual std::byte* obtain(int64_t bytes) = 0;
  virtual void give_back(std::byte* segment, int64_t bytes) noexcept = 0;
};

constexpr int64_t kSegmentUnit = 2 << 20;  ///< a huge page

/// Used by one thread at a time.
class TESSERA_API Arena {
 public:
  /// A new segment holds its block and `1 / slack` of the memory held so far, or of the block where
  /// that is more: blocks that vary in number and size then fit in what is there, and the number of
  /// segments is of the order of the logarithm of their bytes.
  Arena(SegmentSource& source, int64_t slack) : source_(source), slack_(slack) {}
  /// All blocks have been freed.
  ~Arena() { release(); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// A block of rounded_block(bytes) bytes (> 0), aligned to 64, and to 256 where all sizes are
  /// multiples of it. Null: the source has no more, and all that was free has gone back to it.
  [[nodiscard]] std::byte* allocate(int64_t bytes);
  /// The same from what is there: null, with all as it was, where nothing free fits.
  [[nodiscard]] std::byte* allocate_cached(int64_t bytes);
  /// `bytes` as it was given to allocate().
  void free(std::byte* block, int64_t bytes);
  /// Gives segments without a block in use back to the source; returns their bytes.
  int64_t release();
  /// Bytes of all segments.
  [[nodiscard]] int64_t reserved() const { return reserved_; }
  /// Whether the byte lies in a segment.
  [[nodiscard]] bool holds(const std::byte* at) const;

 private:
  using Segments = std::map<std::byte*, int64_t, std::less<>>;
  [[nodiscard]] std::byte* cut(int64_t size);
  std::byte* used(std::byte* block, int64_t size);
  void join(std::byte* begin, int64_t size);
  void join_small();
  bool grow(int64_t size, int64_t slack);
  void make_room(int64_t size);
  void add_range(std::byte* begin, int64_t size);
  void remove_range(std::map<std::byte*, int64_t>::iterator range);
  [[nodiscard]] bool is_free(const Segments::value_type& segment) const;
  Segments::iterator give_back(Segments::iterator segment);

  SegmentSource& source_;
  const int64_t slack_;
  Segments segments_;                                 // bytes by address
  std::map<std::byte*, int64_t> ranges_;              // free ones: bytes by address
  std::set<std::pair<int64_t, std::byte*>> by_size_;  // the same ones
  std::array<std::vector<std::byte*>, kClasses> small_;
  int64_t reserved_ = 0, used_ = 0, most_used_ = 0, kept_small_ = 0;  // bytes
};

}  // namespace tessera
