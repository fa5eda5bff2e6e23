// SPDX-License-Identifier: Apache-2.0
// What attention's forward and backward kernels share. A block has (kTile/2)^2 threads; each works
// on a 2 x 2 piece of the tile's scores, and on 2 rows of its outputs in every (kTile/2)-th column.
// All arithmetic is f32 (f64 for f64).
#pragma once

#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/mask/mask_impl.h"
#include "tessera/kernels/shared/block_reduce.cuh"
#include "tessera/kernels/shared/launch.cuh"
#include "tessera/kernels/vector_math.h"

namespace tessera::op {

/// f64 tiles are half as high: they must fit into a block's shared memory too.
template <class T> inline constexpr int kTile = sizeof(T) == 8 ? 16 : 32;

/// An operand as (batch, head, time, d), whatever order its dims have.
template <class T> struct Heads {
  T* p;
  int64_t batch, head, time, d;

  Heads(const Tensor& x, bool heads_inner)
      : p(static_cast<T*>(x.raw_device_data())),
        batch(x.strides()[0]),
        head(x.strides()[heads_inner ? 2 : 1]),
        time(x.strides()[heads_inner ? 1 : 2]),
        d(x.strides()[3]) {}
  __device__ T* of(int64_t b, int64_t h) const { return p + b * batch + h * head; }
};

/// What lies in a tile of queries or keys, (lists, tiles): where positions or documents are given.
static __global__ void find_extents(Ids positions, Ids documents, Extent* extents, int64_t n,
                                    int64_t tiles, int64_t lists, int rows) {
  for (int64_t i = first_item(); i < lists * tiles; i += item_step()) {
    const int64_t b = i / tiles, first = i % tiles * rows;
    Extent extent;
    for (int64_t j = first; j < min(first + rows, n); ++j)
      extent.add({positions.at(b, j), documents.at(b, j)});
    extents[i] = extent;
  }
}

/// The queries or the keys of a call, as masks see them.
struct Sequence {
  Ids positions, documents;
  int64_t n, rows;                  // tokens, and those of a tile
  const Extent* extents = nullptr;  // (B or 1, tiles); null: positions in order, no documents
  int64_t step = 0;                 // from one batch to the next

  Sequence(const Tensor& p, const Tensor& d, int64_t start, int64_t length)
      : positions(p, start), documents(d, 0), n(length), rows(0) {}
  /// Makes the extents of tiles of `tile` tokens; the tensor must live as long.
  Tensor find(int tile, const Tensor& p, const Tensor& d, Stream stream) {
    rows = tile;
    if ((!p.defined() && !d.defined()) || n == 0) return {};
    const bool each = (p.defined() && p.rank() == 2) || (d.defined() && d.rank() == 2);
    const int64_t tiles = ceil_div(n, tile),
                  lists = each ? (p.defined() && p.rank() == 2 ? p : d).shape()[0] : 1;
    constexpr int64_t kWords = sizeof(Extent) / sizeof(int64_t);
    const Tensor kept =
        empty({lists * tiles * kWords}, DType::i64, p.defined() ? p.device() : d.device());
    auto* to = reinterpret_cast<Extent*>(kept.device_data<int64_t>());
    if (lists > 0) {
      launch(find_extents, blocks_for(lists * tiles), kThreads, 0, stream, positions, documents, to,
             n, tiles, lists, tile);
    }
    extents = to;
    step = each ? tiles : 0;
    return kept;
  }
  /// What lies in the tile that starts at `first`.
  __device__ Extent extent(int64_t b, int64_t first) const {
    if (extents) return extents[b * step + first / rows];
    Extent e;
    e.first = {positions.start + first, 0};
    e.last = {positions.start + min(first + rows, n) - 1, 0};
    return e;
  }
  __device__ Token at(int64_t b, int64_t i) const {
    return {positions.at(b, i), documents.at(b, i)};
  }
};

/// How much of a tile of queries and keys is seen, and by what.
struct TileMask {
  int part;      // a Part
  int64_t bits;  // the number of its block's bits, kByMask, or kBroken
  static constexpr int64_t kByMask = -1, kBroken = -2;
};

struct AttentionSizes {
  int64_t batch, heads, kv_heads, queries, keys;
  int d, dv;
  double scale;
  AttentionMask mask;
  Sequence query, key;
  // A block map; null where there is none.
  const int32_t* blocks = nullptr;
  const int64_t* bits = nullptr;
  int64_t block_step[3] = {}, bit_step[2] = {}, bit_blocks = 0;

  template <class Op>
  AttentionSizes(const Op& op, const Tensor& q, const Tensor& k, const Tensor& v,
                 const MaskOperands& x)
      : mask(op.mask),
        query(x.query_positions, x.query_documents, op.query_start,
              q.shape()[op.heads_inner ? 1 : 2]),
        key(x.key_positions, x.key_documents, op.key_start, k.shape()[op.heads_inner ? 1 : 2]) {
    const int head = op.heads_inner ? 2 : 1;
    batch = q.shape()[0], heads = q.shape()[head], queries = query.n;
    kv_heads = k.shape()[head], keys = key.n;
    d = static_cast<int>(q.shape()[3]), dv = static_cast<int>(v.shape()[3]);
    scale = op.scale != 0 ? op.scale : 1 / std::sqrt(static_cast<double>(std::max(d, 1)));
    if (!x.blocks.defined()) return;
    blocks = x.blocks.device_data<int32_t>();
    for (int i = 0; i < 3; ++i) block_step[i] = x.blocks.strides()[i];
    if (x.blocks.shape()[0] == 1) block_step[0] = 0;
    if (!x.bits.defined()) return;
    bits = x.bits.device_data<int64_t>();
    bit_blocks = x.bits.shape()[0];
    for (int i = 0; i < 2; ++i) bit_step[i] = x.bits.strides()[i];
  }
  /// Finds what lies in each tile of `rows` queries or keys; the tensors must live as long.
  std::array<Tensor, 2> cut_into_tiles(int rows, const MaskOperands& x, Stream stream) {
    return {query.find(rows, x.query_positions, x.query_documents, stream),
            key.find(rows, x.key_positions, x.key_documents, stream)};
  }
  /// Of the tile of queries from `q` on and of keys from `k` on. A tile lies in one block.
  __device__ TileMask tile(int64_t b, int64_t q, int64_t k) const {
    if (blocks) {
      const int32_t value = blocks[b * block_step[0] + q / kAttentionBlock * block_step[1] +
                                   k / kAttentionBlock * block_step[2]];
      const int64_t i = static_cast<int64_t>(value) - BlockMap::kBits;
      if (value < 0 || i >= bit_blocks) return {kSome, TileMask::kBroken};
      if (i >= 0) return {kSome, i};
      if (value != BlockMap::kPartial)
        return {value == BlockMap::kFull ? kAll : kNone, TileMask::kByMask};
    }
    return {part_seen(mask, query.extent(b, q), key.extent(b, k)), TileMask::kByMask};
  }
  /// Whether a query of that tile sees a key of it. Both may lie behind the last.
  __device__ bool visible(const TileMask& t, int64_t b, int64_t q, int64_t k) const {
    if (q >= queries || k >= keys) return false;
    if (t.part == kAll || t.bits == TileMask::kBroken) return true;
    if (t.bits == TileMask::kByMask) return sees(mask, query.at(b, q), key.at(b, k));
    const int64_t word = bits[t.bits * bit_step[0] + q % kAttentionBlock * bit_step[1]];
    return (static_cast<uint64_t>(word) >> (k % kAttentionBlock) & 1) != 0;
  }
};

/// Row length of a tile in shared memory: odd, so that rows lie in different banks.
__host__ __device__ inline int tile_stride(int d) { return d | 1; }

/// Rows [first, first + rows) of one head, as C; rows at or beyond `total` are zero. All threads of
/// the block call it.
template <class C, class T>
__device__ void load_tile(C* tile, int rows, const T* head, const Heads<const T>& strides,
                          int64_t first, int64_t total, int d) {
  for (int i = threadIdx.x; i < rows * d; i += blockDim.x) {
    const int r = i / d, c = i - r * d;
    const int64_t at = first + r;
    tile[r * tile_stride(d) + c] =
        at < total ? static_cast<C>(head[at * strides.time + c * strides.d]) : C(0);
  }
}

/// weight * value + sum, where a weight of 0 takes nothing: a row of a tile that is not seen may
/// hold infinities.
template <class C> __device__ C add_product(C weight, C value, C sum) {
  return weight == C(0) ? sum : vmath::fma(weight, value, sum);
}

/// products[i][j] of rows (y + i half) of `a` and (x + j half) of `b`.
template <int kHalf, class C>
__device__ void dot_tiles(const C* a, const C* b, int y, int x, int d, C (&products)[2][2]) {
  const int ld = tile_stride(d);
  const C *a0 = a + y * ld, *a1 = a0 + kHalf * ld, *b0 = b + x * ld, *b1 = b0 + kHalf * ld;
  C p00 = 0, p01 = 0, p10 = 0, p11 = 0;
  for (int c = 0; c < d; ++c) {
    p00 = vmath::fma(a0[c], b0[c], p00);
    p01 = vmath::fma(a0[c], b1[c], p01);
    p10 = vmath::fma(a1[c], b0[c], p10);
    p11 = vmath::fma(a1[c], b1[c], p11);
  }
  products[0][0] = p00, products[0][1] = p01, products[1][0] = p10, products[1][1] = p11;
}

/// Calls f<columns>() with the number of output columns a thread holds: the smallest of a few that
/// covers d.
template <class T, class F> void with_columns(int d, F&& f) {
  constexpr int kHalf = kTile<T> / 2;
  if (d <= 64) return f.template operator()<64 / kHalf>();
  if constexpr (sizeof(T) != 8) {
    if (d <= 128) return f.template operator()<128 / kHalf>();
  }
  f.template operator()<kMostHeadSize / kHalf>();
}

/// Lets `kernel` use `bytes` of shared memory, above the default limit too.
template <class Kernel> void allow_shared(Kernel kernel, size_t bytes) {
  if (bytes > (48 << 10)) {
    TESSERA_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(bytes)));
  }
}

}  // namespace tessera::op
