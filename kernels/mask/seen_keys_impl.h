// SPDX-License-Identifier: Apache-2.0
// What each query sees, worked out once for a call. Where keys stand in order, and documents too,
// a mask is a range of keys for each query, whatever the order of the queries (OR: where the ranges
// touch). Anything else, and a block map, is a list of the blocks of keys that each block of
// queries sees: blocks that are not in it cost nothing, and of those that are seen in part the mask
// is evaluated to 64 bits for each query. No T x T buffer.
#pragma once

#include "tessera/kernels/mask/mask_view_impl.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

namespace tessera::op::attention {

inline constexpr int64_t kBlock = kAttentionBlock;  // queries or keys worked on at a time

struct KeyRange {
  int64_t first, last;  // both seen; none if last < first
  [[nodiscard]] bool empty() const { return last < first; }
};

/// The range of keys that a query sees, while there is one.
struct OneRange {
  KeyRange range{0, -1};
  bool one = true;
  friend OneRange operator&(const OneRange& a, const OneRange& b) {
    return {{a.range.first > b.range.first ? a.range.first : b.range.first,
             a.range.last < b.range.last ? a.range.last : b.range.last},
            a.one && b.one};
  }
  friend OneRange operator|(const OneRange& a, const OneRange& b) {
    const KeyRange &x = a.range, &y = b.range;
    const bool one = a.one && b.one;
    if (x.empty()) return {y, one};
    if (y.empty()) return {x, one};
    return {{x.first < y.first ? x.first : y.first, x.last > y.last ? x.last : y.last},
            one && x.first <= y.last + 1 && y.first <= x.last + 1};
  }
};

/// What a query at `position` sees of `keys` keys at the positions from `start` on; `document`: the
/// keys of its document. No keys are {0, -1}.
inline OneRange range_seen(const AttentionMask& mask, int64_t position, int64_t keys, int64_t start,
                           const KeyRange& document) {
  using Kind = AttentionMask::Kind;
  const OneRange all{{0, keys - 1}};
  const auto between = [&](int64_t first, int64_t last) { return all & OneRange{{first, last}}; };
  OneRange seen = mask.evaluate(all, [&](Kind kind, int64_t n) {
    if (kind == Kind::document) return between(document.first, document.last);
    const SeenNumbers numbers = seen_numbers(kind, n, position);
    const auto first = static_cast<int64_t>(numbers.first),
               last = static_cast<int64_t>(numbers.first + numbers.more);
    return between(std::max(first, start) - start, last - start);
  });
  if (seen.range.empty()) seen.range = {0, -1};
  return seen;
}

/// Of a list of blocks: what is seen of the keys [kBlock * block, + kBlock).
struct SeenBlock {
  int32_t block;
  BlockSeen seen;
};

/// The sizes that a mask is worked out for.
struct MaskSizes {
  int64_t batches, queries, keys;
};

class SeenKeys {
 public:
  /// ValueError: a block map that names bits that are not there.
  template <class Op>
  SeenKeys(const Op& op, const MaskSizes& sizes, Tensors in)
      : SeenKeys(op, Op::name, sizes, MaskOperands(in, Op::mask_operands)) {}

  /// One for each batch, or one for all.
  [[nodiscard]] int64_t lists() const { return lists_; }
  [[nodiscard]] size_t list_of(int64_t batch) const {
    return static_cast<size_t>(lists_ > 1 ? batch : 0);
  }
  /// Ranges; else blocks.
  [[nodiscard]] bool in_ranges() const { return ranged_; }

  [[nodiscard]] const KeyRange* ranges(int64_t batch) const {
    return ranges_.data() + list_of(batch) * static_cast<size_t>(sizes_.queries);
  }
  /// Whether ranges start where documents do.
  [[nodiscard]] bool documents() const { return !starts_.empty(); }
  /// The key at which the query's document starts; 0 where there are no documents.
  [[nodiscard]] int64_t start(int64_t batch, int64_t query) const {
    return documents() ? starts_[list_of(batch) * static_cast<size_t>(sizes_.queries) +
                                 static_cast<size_t>(query)]
                       : 0;
  }

  /// The blocks of keys that the queries from `row` on see, in order; row is a multiple of kBlock.
  [[nodiscard]] std::span<const SeenBlock> blocks(int64_t batch, int64_t row) const {
    const size_t at =
        list_of(batch) * static_cast<size_t>(query_blocks()) + static_cast<size_t>(row / kBlock);
    return std::span(blocks_).subspan(ends_[at], ends_[at + 1] - ends_[at]);
  }
  /// words[i]: the keys of the block that query row + i sees, a bit for each. Only for blocks that
  /// are not whole.
  void words(int64_t batch, int64_t row, int64_t rows, const SeenBlock& block,
             uint64_t* words) const;

 private:
  template <class Op>
  SeenKeys(const Op& op, std::string_view name, const MaskSizes& sizes, const MaskOperands& x)
      : view_(op, x, sizes.queries, sizes.keys), sizes_(sizes) {
    find(name, x);
  }
  void find(std::string_view name, const MaskOperands& x);
  bool find_ranges();
  void find_blocks(std::string_view name, const Tensor& map);
  [[nodiscard]] int64_t query_blocks() const { return (sizes_.queries + kBlock - 1) / kBlock; }

  MaskView view_;
  MaskSizes sizes_;
  int64_t lists_ = 1;
  bool ranged_ = false;
  std::vector<KeyRange> ranges_;
  std::vector<int64_t> starts_;
  std::vector<SeenBlock> blocks_;
  std::vector<size_t> ends_;
};

}  // namespace tessera::op::attention
