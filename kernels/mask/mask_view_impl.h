// SPDX-License-Identifier: Apache-2.0
// A mask with its operands, as the kernels of CPU and CUDA walk it: what a block of queries sees of
// a block of keys, and whether one query sees one key of it. Plain data, passed to kernels by
// value.
#pragma once

#include "tessera/kernels/mask/mask_impl.h"

namespace tessera::op {

/// What a block of queries sees of a block of keys: the number of the bits of a block map that say
/// it, or one of these.
struct BlockSeen {
  int32_t by;
  static constexpr int32_t kNothing = -1, kEverything = -2, kByMask = -3;
  static constexpr int32_t kBroken = -4;  ///< the block map names bits that are not there
};

/// The queries or the keys of a call, in blocks.
struct TokenBlocks {
  Ids positions, documents;
  int64_t n = 0, rows = kAttentionBlock;  // all tokens; tokens of a block
  const Extent* extents = nullptr;  // (B or 1, blocks); null: positions in order, no documents
  int64_t step = 0;                 // extents from one batch to the next

  TokenBlocks(const Tensor& p, const Tensor& d, int64_t start, int64_t length)
      : positions(p, start), documents(d, 0), n(length) {}
  [[nodiscard]] TESSERA_HD Token at(int64_t b, int64_t i) const {
    return {positions.at(b, i), documents.at(b, i)};
  }
  /// What conditions of `kind` compare.
  [[nodiscard]] TESSERA_HD const Ids& ids(AttentionMask::Kind kind) const {
    return kind == AttentionMask::Kind::document ? documents : positions;
  }
  /// Its tokens looked at one by one.
  [[nodiscard]] TESSERA_HD Extent find_extent(int64_t b, int64_t first) const {
    Extent e;
    for (int64_t i = first; i < first + rows && i < n; ++i) e.add(at(b, i));
    return e;
  }
  /// The extent of the block that starts at `first`.
  [[nodiscard]] TESSERA_HD Extent extent(int64_t b, int64_t first) const {
    if (extents) return extents[b * step + first / rows];
    const int64_t end = first + rows < n ? first + rows : n;
    Extent e;
    e.first = {positions.start + first, 0};
    e.last = {positions.start + end - 1, 0};
    return e;
  }
};

struct MaskView {
  AttentionMask mask;
  TokenBlocks query, key;
  // A block map; null where there is none.
  const int32_t* blocks = nullptr;
  const int64_t* bits = nullptr;
  int64_t block_step[3] = {}, bit_step[2] = {}, bit_blocks = 0;

  template <class Op>
  MaskView(const Op& op, const MaskOperands& x, int64_t queries, int64_t keys)
      : mask(op.mask),
        query(x.query_positions, x.query_documents, op.query_start, queries),
        key(x.key_positions, x.key_documents, op.key_start, keys) {
    if (!x.blocks.defined()) return;
    blocks = pointer_to<int32_t>(x.blocks);
    for (int i = 0; i < 3; ++i) block_step[i] = x.blocks.strides()[i];
    if (x.blocks.shape()[0] == 1) block_step[0] = 0;
    if (!x.bits.defined()) return;
    bits = pointer_to<int64_t>(x.bits);
    bit_blocks = x.bits.shape()[0];
    for (int i = 0; i < 2; ++i) bit_step[i] = x.bits.strides()[i];
  }

  /// The entry of the block map for the block of query q and key k.
  [[nodiscard]] TESSERA_HD int32_t map_entry(int64_t b, int64_t q, int64_t k) const {
    return blocks[b * block_step[0] + q / kAttentionBlock * block_step[1] +
                  k / kAttentionBlock * block_step[2]];
  }
  /// What the block of queries from q on sees of the block of keys from k on. Each lies in one
  /// block of the map.
  [[nodiscard]] TESSERA_HD BlockSeen block(int64_t b, int64_t q, int64_t k) const {
    if (blocks) {
      const int32_t entry = map_entry(b, q, k);
      if (entry < 0 || entry - BlockMap::kBits >= bit_blocks) return {BlockSeen::kBroken};
      const int32_t number = entry - BlockMap::kBits;
      if (number >= 0) return {number};
      if (entry == BlockMap::kFull) return {BlockSeen::kEverything};
      if (entry == BlockMap::kEmpty) return {BlockSeen::kNothing};
    }
    const int part = part_seen(mask, query.extent(b, q), key.extent(b, k));
    return {part == kAll    ? BlockSeen::kEverything
            : part == kNone ? BlockSeen::kNothing
                            : BlockSeen::kByMask};
  }
  /// The bits of query q of a block that is seen by them, one for each of its 64 keys.
  [[nodiscard]] TESSERA_HD uint64_t word(const BlockSeen& seen, int64_t q) const {
    return static_cast<uint64_t>(bits[seen.by * bit_step[0] + q % kAttentionBlock * bit_step[1]]);
  }
  /// Whether query q of a block sees key k of it. Both may lie behind the last.
  [[nodiscard]] TESSERA_HD bool sees(const BlockSeen& seen, int64_t b, int64_t q, int64_t k) const {
    if (q >= query.n || k >= key.n) return false;
    if (seen.by == BlockSeen::kEverything || seen.by == BlockSeen::kBroken) return true;
    if (seen.by == BlockSeen::kByMask) return op::sees(mask, query.at(b, q), key.at(b, k));
    return (word(seen, q) >> (k % kAttentionBlock) & 1) != 0;
  }
};

}  // namespace tessera::op
