// SPDX-License-Identifier: Apache-2.0
// Block maps of attention: what each block of 64 queries sees of each block of 64 keys. A map lets
// a kernel pass over whole blocks, and carries masks that AttentionMask cannot say: bits, for the
// blocks that are seen in part. Made once for a batch, and read by the forward and backward op of
// every layer. It is PyTorch's BlockMask with its mask_mod, for blocks of 64 alone and without a
// head dim.
#pragma once

#include "tessera/core/parallel.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/mask/mask.h"

#include <concepts>
#include <functional>
#include <span>

namespace tessera {

inline constexpr int64_t kAttentionBlock = 64;  ///< queries and keys of a block

struct BlockMap {
  static constexpr int kEmpty = 0;    ///< nothing of the block is seen
  static constexpr int kPartial = 1;  ///< the mask says what is seen
  static constexpr int kFull = 2;     ///< all of it is seen; the mask is not asked
  static constexpr int kBits = 3;     ///< kBits + i: bits[i] alone say what is seen

  Tensor blocks = {};  ///< (B or 1, T / 64, S / 64), rounded up, i32
  /// (N, 64) i64, optional: bit j of bits[i][r] is set if query r of the block sees its key j.
  Tensor bits = {};
};

/// The queries and keys that a block map is made for.
struct BlockMapSizes {
  int64_t batches = 1, queries = 0, keys = 0;
  int64_t query_start = 0,
          key_start = 0;  ///< the position of the first, where positions are not given
  Tensor query_positions = {}, key_positions = {};  ///< (B, T) or (T), (B, S) or (S), i64
};

/// sees(batch, query position, key position); batch 0 where one map serves all.
using AttentionPredicate = std::function<bool(int64_t, int64_t, int64_t)>;

namespace detail {
/// seen(batch, positions of up to 64 queries, of up to 64 keys, words): sets each query's word,
/// whose bit j says whether it sees key j.
using SeenOfBlock = std::function<void(int64_t, std::span<const int64_t>, std::span<const int64_t>,
                                       std::span<uint64_t>)>;
TESSERA_API BlockMap make_block_map(const BlockMapSizes& sizes, const SeenOfBlock& seen);
}  // namespace detail

/// The map of any predicate, on the CPU; asks it once for each pair, from several threads at once,
/// and keeps bits of the blocks that are seen in part. A lambda is compiled into the loop over
/// pairs; an AttentionPredicate is called for each of them. Memory: 512 bytes for each block with
/// bits. ShapeError, DTypeError, DeviceError; what the predicate throws.
template <std::predicate<int64_t, int64_t, int64_t> Sees>
BlockMap make_block_map(const BlockMapSizes& sizes, const Sees& sees) {
  return detail::make_block_map(
      sizes, [&sees](int64_t batch, std::span<const int64_t> queries, std::span<const int64_t> keys,
                     std::span<uint64_t> words) {
        simd([&]() TESSERA_LAMBDA {
          for (size_t i = 0; i < queries.size(); ++i) {
            uint64_t word = 0;
            for (size_t j = 0; j < keys.size(); ++j)
              word |= (sees(batch, queries[i], keys[j]) ? uint64_t{1} : 0) << j;
            words[i] = word;
          }
        });
      });
}

/// The block map of the queries and keys at these places of a whole map's: (T) or (B, T), and (S)
/// or (B, S), i64, on the CPU. Blocks that move as wholes keep their value and bits; others get
/// bits. ShapeError, DTypeError; IndexError: a place beyond the map; ValueError: a block would mix
/// what the mask says with what the map says.
TESSERA_API BlockMap select_block_map(const BlockMap& map, const Tensor& queries,
                                      const Tensor& keys);

}  // namespace tessera
