// SPDX-License-Identifier: Apache-2.0
// Products of bf16 by matrix tiles, summed in f32. c is cut into one part for each thread; a part
// packs panels of b that stay in the second cache, reads a in place or packs it, and multiplies
// blocks of 32 x 32 over kInner of k, so that the rows of a stay in the first cache. While a block
// is multiplied, one before it is rounded and written, lines of c that will be written soon are
// fetched, and the next rows of a are packed or fetched, a few in each block. The order of each
// sum depends on k alone: results are equal for all numbers of threads.
#include "tessera/kernels/matmul/gemm_kinds_impl.h"
#include "tessera/kernels/matmul/parts_impl.h"
#include "tessera/kernels/products/micro_tiles_impl.h"

#if defined(__x86_64__) && defined(__linux__)
#include "tessera/kernels/matmul/tile_words_impl.h"

namespace tessera {
namespace {

using namespace tile_words;

constexpr int64_t kInner = 256 / kBlock;    // blocks of k that a block of c is multiplied over
constexpr int64_t kPanel = 512;             // blocks in a packed panel of b: 1 MiB
constexpr int64_t kSums = 1 << 10;          // blocks of sums that a part may keep: 4 MiB
constexpr int64_t kDepth = 1024 / kBlock;   // blocks of k in a panel, and
constexpr int64_t kShallow = 512 / kBlock;  // where the sums of the part fit in cache
constexpr int64_t kPackedRows = 4;          // blocks of rows of a packed at once by columns
constexpr int64_t kMostRows = 32;           // blocks of rows in a part that keeps sums
constexpr int64_t kAhead = 128;             // bytes: lines of c are fetched that much before use
constexpr int64_t kTask = 1 << 21;          // multiply-adds that are worth a thread

constexpr int64_t blocks_of(int64_t n) { return ceil_div(n, kBlock); }

// What all parts of a product share; sizes of parts and panels in blocks.
struct Plan {
  Gemm g;
  Parts parts;
  int64_t first_task = 0;
  int64_t depth = 0, width = 0;  // of a panel of b
  bool a_by_rows = false, b_by_rows = false, a_in_place = false;

  explicit Plan(const Gemm& gemm) : g(gemm) {}
  [[nodiscard]] bool keeps_sums() const { return blocks_of(g.k) > depth; }
  [[nodiscard]] bool has_strip() const { return blocks_of(g.k) > kInner; }
  // Rows of a that lie by rows are packed while the rows before them are multiplied.
  [[nodiscard]] int64_t packed_rows() const { return a_in_place ? 1 : a_by_rows ? 2 : kPackedRows; }
  [[nodiscard]] bool packs_ahead() const { return a_by_rows && !a_in_place; }
  [[nodiscard]] int64_t panel_words() const { return depth * width * kBlockWords; }
  [[nodiscard]] int64_t a_words() const { return packed_rows() * depth * kBlockWords; }
  // Two blocks at least: the one before is written while the next is multiplied.
  [[nodiscard]] int64_t sum_words() const {
    return 2 * kBlockWords *
           (keeps_sums()  ? std::max<int64_t>(2, parts.rows * width)
            : has_strip() ? 2 * width
                          : 2);
  }
  [[nodiscard]] int64_t scratch() const { return panel_words() + a_words() + sum_words(); }
};

Plan plan_of(const Gemm& g, int64_t share) {
  Plan p{g};
  const int64_t depth = blocks_of(g.k);
  p.a_by_rows = g.a_col == 1 || g.k == 1;
  p.b_by_rows = g.b_col == 1 || g.n == 1;
  // Rows whose distance is a multiple of 2 KiB share few lines of the first cache.
  p.a_in_place = p.a_by_rows && g.a_row % kBlock == 0 && g.a_batch % kBlock == 0 &&
                 g.a_row * 2 % 2048 != 0 && reinterpret_cast<uintptr_t>(g.a) % 64 == 0;
  // About the cycles of a block of k: multiplying, packing b, reading or packing a.
  p.parts = cut_in_parts(
      g, blocks_of(g.m), blocks_of(g.n), share, kTask,
      [&](int64_t r, int64_t c) { return 90 * r * c + 150 * c + (p.a_in_place ? 30 : 120) * r; });
  p.depth = std::min(depth, kDepth);
  if (p.keeps_sums()) {
    p.parts.rows = std::min(p.parts.rows, kMostRows);
    if (p.parts.rows * std::min(p.parts.columns, kPanel / kShallow) <= kSums) p.depth = kShallow;
  }
  p.width = std::min(p.parts.columns, kPanel / p.depth);
  return p;
}

// A block of c whose sums are ready: m rows of n elements to be written.
struct Result {
  const float* sums = nullptr;  // four tiles: rows 0-15 and 16-31, columns 0-15 and 16-31 of each
  std::byte* c = nullptr;
  int64_t row_bytes = 0, m = 0, n = 0;
  bool wide = false, accumulate = false;
  [[nodiscard]] bool whole() const { return m == kBlock && n == kBlock && !wide && !accumulate; }
};

TESSERA_TILE_WORDS inline __m512 widened(__m256i half) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

TESSERA_TILE_WORDS inline void write_row(const Result& r, int64_t i) {
  const float* sums = r.sums + (i & 16) * 32 + (i & 15) * 16;
  __m512 low = _mm512_load_ps(sums), high = _mm512_load_ps(sums + kTileWords);
  std::byte* row = r.c + i * r.row_bytes;
  const __mmask32 mask = first(r.n);
  if (r.wide) {
    auto* c = reinterpret_cast<float*>(row);
    const auto mask_low = static_cast<__mmask16>(mask),
               mask_high = static_cast<__mmask16>(mask >> 16);
    if (r.accumulate) {
      low = _mm512_add_ps(low, _mm512_maskz_loadu_ps(mask_low, c));
      high = _mm512_add_ps(high, _mm512_maskz_loadu_ps(mask_high, c + 16));
    }
    _mm512_mask_storeu_ps(c, mask_low, low);
    _mm512_mask_storeu_ps(c + 16, mask_high, high);
    return;
  }
  if (r.accumulate) {
    const __m512i c = _mm512_maskz_loadu_epi16(mask, row);
    low = _mm512_add_ps(low, widened(_mm512_castsi512_si256(c)));
    high = _mm512_add_ps(high, widened(_mm512_extracti64x4_epi64(c, 1)));
  }
  const auto rounded = (__m512i)_mm512_cvtne2ps_pbh(high, low);
  if (r.n >= kBlock) _mm512_storeu_si512(row, rounded);
  else _mm512_mask_storeu_epi16(row, mask, rounded);
}

// A block of a: its two tiles at a and a + half, rows of `row_bytes`, the next of k at + step.
struct ABlock {
  const bf16* at;
  int64_t half, row_bytes, step;
};

// Some rows of the row block of a that comes next, to be copied to their place in its tiles, or, if
// they are multiplied where they lie, fetched to the second cache.
struct Ahead {
  const bf16* from = nullptr;
  int64_t rows = 0, row = 0, k = 0;  // `row` elements apart, k of them left
  uint32_t* to = nullptr;
};

TESSERA_TILE_WORDS inline void bring(Ahead& a) {
  for (int64_t i = 0; i < a.rows; ++i) {
    if (a.to) _mm512_store_si512(a.to + 16 * i, read(a.from + i * a.row, a.k));
    else _mm_prefetch(a.from + i * a.row, _MM_HINT_T1);
  }
  a.from += kBlock, a.k -= kBlock;
  if (a.to) a.to += kBlockWords;
}

// A tile of sums: the one before goes to `held`, this one comes from `sums` or is zero.
#define TESSERA_NEXT_SUMS(tile)                                              \
  _tile_stored(tile, held + tile * kTileWords, 64);                          \
  if constexpr (accumulate) _tile_loadd(tile, sums + tile * kTileWords, 64); \
  else _tile_zero(tile)

// Tiles = sums or zero, += a b over `depth` blocks of k; the sums stay in the tiles until the next
// block needs these one by one, so that products never stop. b is read past the first cache, which
// is left to a, sums and c. Meanwhile `before` is written, rows of a are brought, and lines of c
// ahead of the rows of `next`, if it has any, are fetched to the second cache: with fewest
// instructions where both are `whole` and depth is kInner.
template <bool accumulate, bool whole>
TESSERA_TILE_WORDS void multiply_block(int64_t depth, ABlock a, const uint32_t* b, float* held,
                                       const float* sums, const Result& before, const Result& next,
                                       Ahead ahead_a) {
  const int64_t share = ceil_div(kBlock, depth);
  [[maybe_unused]] const float* from = before.sums;
  [[maybe_unused]] const int64_t row_bytes = before.row_bytes;
  [[maybe_unused]] std::byte *to = before.c, *fetched = next.c + kAhead;
  for (int64_t s = 0; s < (whole ? kInner : depth); ++s) {
    _tile_stream_loadd(6, b, 64);
    _tile_loadd(4, a.at, a.row_bytes);
    if (s == 0) {
      TESSERA_NEXT_SUMS(0);
      _tile_dpbf16ps(0, 4, 6);
      _tile_stream_loadd(7, b + kTileWords, 64);
      TESSERA_NEXT_SUMS(1);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a.at + a.half, a.row_bytes);
      TESSERA_NEXT_SUMS(2);
      _tile_dpbf16ps(2, 5, 6);
      TESSERA_NEXT_SUMS(3);
    } else {
      _tile_stream_loadd(7, b + kTileWords, 64);
      _tile_loadd(5, a.at + a.half, a.row_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
    }
    _tile_dpbf16ps(3, 5, 7);
    a.at += a.step;
    b += kBlockWords;
    bring(ahead_a);
    if constexpr (whole) {
#pragma GCC unroll 4
      for (int64_t i = 0; i < kBlock / kInner; ++i) {
        _mm_prefetch(fetched, _MM_HINT_T1);
        const __m512 low = _mm512_load_ps(from), high = _mm512_load_ps(from + kTileWords);
        _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        fetched += row_bytes, to += row_bytes, from += 16;
      }
      if (s == kInner / 2 - 1) from += kTileWords;
    } else {
      for (int64_t i = s * share; i < std::min(next.m, (s + 1) * share); ++i) {
        const std::byte* ahead = next.c + i * next.row_bytes + kAhead;
        _mm_prefetch(ahead, _MM_HINT_T1);
        if (next.wide) _mm_prefetch(ahead + 64, _MM_HINT_T1);
      }
      for (int64_t i = s * share; i < std::min(before.m, (s + 1) * share); ++i)
        write_row(before, i);
    }
  }
}

#undef TESSERA_NEXT_SUMS

// One thread's part of one product: blocks [row, row_end) by [column, column_end) of c.
class Part {
 public:
  Part(const Plan& plan, int64_t task, uint32_t* scratch)
      : p_(plan),
        g_(plan.g),
        panel_(scratch),
        packed_a_(panel_ + plan.panel_words()),
        sums_(reinterpret_cast<float*>(packed_a_ + plan.a_words())) {
    const Parts& parts = plan.parts;
    const int64_t batch = task / parts.count(), part = task % parts.count();
    row_ = part / parts.across() * parts.rows;
    row_end_ = std::min(parts.all_rows, row_ + parts.rows);
    column_ = part % parts.across() * parts.columns;
    column_end_ = std::min(parts.all_columns, column_ + parts.columns);
    a_ = static_cast<const bf16*>(g_.a) + batch * g_.a_batch;
    b_ = static_cast<const bf16*>(g_.b) + batch * g_.b_batch;
    item_ = item_size(g_.wide ? DType::f32 : g_.dtype);
    c_ = static_cast<std::byte*>(g_.c) + batch * g_.c_batch * item_;
  }

  TESSERA_TILE_WORDS void run() {
    const int64_t depth = blocks_of(g_.k);
    for (int64_t j = column_; j < column_end_; j += p_.width) {
      const int64_t width = std::min(p_.width, column_end_ - j);
      for (int64_t s = 0; s < depth; s += p_.depth) {
        const int64_t steps = std::min(p_.depth, depth - s);
        pack_b(j, width, s, steps);
        for (int64_t i = row_; i < row_end_; ++i) {
          const ABlock a = a_block(i, s, steps);
          multiply_row(i, a, j, width, s, steps);
        }
      }
      finish();
    }
  }

 private:
  // Where b lies by rows, whole rows are read; by columns, whole columns.
  TESSERA_TILE_WORDS void pack_b(int64_t j, int64_t width, int64_t s, int64_t steps) {
    const int64_t outer = p_.b_by_rows ? steps : width, inner = p_.b_by_rows ? width : steps;
    for (int64_t x = 0; x < outer; ++x) {
      for (int64_t y = 0; y < inner; ++y) {
        const int64_t column = p_.b_by_rows ? y : x, step = p_.b_by_rows ? x : y;
        const int64_t k = (s + step) * kBlock, n = (j + column) * kBlock;
        const bf16* from = b_ + k * g_.b_row + n * g_.b_col;
        uint32_t* to = panel_ + (column * steps + step) * kBlockWords;
        if (p_.b_by_rows) b_by_rows(from, g_.b_row, g_.k - k, g_.n - n, to);
        else b_by_columns(from, g_.b_col, g_.k - k, g_.n - n, to);
      }
    }
  }

  // Row block i over `steps` of k: in place where all of it is whole, else from what is packed,
  // some rows ahead.
  TESSERA_TILE_WORDS ABlock a_block(int64_t i, int64_t s, int64_t steps) {
    if (p_.a_in_place && (i + 1) * kBlock <= g_.m && (s + steps) * kBlock <= g_.k) {
      return {a_ + i * kBlock * g_.a_row + s * kBlock, 16 * g_.a_row, g_.a_row * 2, kBlock};
    }
    const int64_t slot = (i - row_) % p_.packed_rows();
    if (p_.packs_ahead()) {
      if (i == row_) pack_a(i, 1, s, steps);
    } else if (slot == 0) {
      pack_a(i, std::min(p_.packed_rows(), row_end_ - i), s, steps);
    }
    return {reinterpret_cast<const bf16*>(packed_a_ + slot * steps * kBlockWords), 16 * kBlock, 64,
            2 * kBlockWords};
  }

  TESSERA_TILE_WORDS void pack_a(int64_t i, int64_t count, int64_t s, int64_t steps) {
    const int64_t k = g_.k - s * kBlock;
    const bf16* from = a_ + i * kBlock * g_.a_row + s * kBlock * g_.a_col;
    if (p_.a_by_rows) {
      for (int64_t r = 0; r < count * kBlock; ++r) {
        a_row(from + r * g_.a_row, r % kBlock, i * kBlock + r < g_.m ? k : 0, steps,
              packed_a_ + r / kBlock * steps * kBlockWords);
      }
      return;
    }
    for (int64_t step = 0; step < steps; ++step) {
      for (int64_t r = 0; r < count; ++r) {
        a_by_columns(from + r * kBlock + step * kBlock * g_.a_col, g_.a_col,
                     g_.m - (i + r) * kBlock, k - step * kBlock,
                     packed_a_ + (r * steps + step) * kBlockWords);
      }
    }
  }

  // Blocks of row block i with the panel: over kInner of k at a time, all columns.
  TESSERA_TILE_WORDS void multiply_row(int64_t i, const ABlock& a, int64_t j, int64_t width,
                                       int64_t s, int64_t steps) {
    const int64_t depth = blocks_of(g_.k);
    for (int64_t q = 0; q < steps; q += kInner) {
      const int64_t inner = std::min(kInner, steps - q);
      const bool starts = s + q == 0, ends = s + q + inner == depth;
      for (int64_t x = 0; x < width; ++x) {
        float* sums = sums_of(i, x);
        Result next;
        if (ends) next = result(i, j + x, sums);
        const ABlock from{a.at + q * a.step, a.half, a.row_bytes, a.step};
        const uint32_t* b = panel_ + (x * steps + q) * kBlockWords;
        const Ahead ahead = ahead_of(i + 1, x, width, s, q, steps);
        const bool whole = inner == kInner && before_.whole() && next.whole();
        const auto multiply =
            starts ? (whole ? multiply_block<false, true> : multiply_block<false, false>)
                   : (whole ? multiply_block<true, true> : multiply_block<true, false>);
        multiply(inner, from, b, held_ ? held_ : sums, sums, before_, next, ahead);
        before_ = held_result_;
        held_result_ = next;
        held_ = sums;
      }
    }
  }

  // What block x of `width` brings of row block i, over the k of its own. Rows beyond m are not
  // brought: what they give is not written.
  [[nodiscard]] Ahead ahead_of(int64_t i, int64_t x, int64_t width, int64_t s, int64_t q,
                               int64_t steps) const {
    if (!p_.a_by_rows || i >= row_end_) return {};
    const int64_t share = ceil_div(kBlock, width), first = std::min(kBlock, x * share);
    const int64_t row = i * kBlock + first, k = (s + q) * kBlock;
    Ahead ahead{a_ + row * g_.a_row + k, std::min(kBlock, first + share) - first, g_.a_row,
                g_.k - k};
    ahead.rows = std::clamp<int64_t>(g_.m - row, 0, ahead.rows);
    if (p_.packs_ahead())
      ahead.to = packed_a_ + ((i - row_) % 2 * steps + q) * kBlockWords + 16 * first;
    return ahead;
  }

  // Sums of a block: kept for the part, for a row of blocks and the one before, or for two blocks.
  float* sums_of(int64_t i, int64_t x) {
    const int64_t at = p_.keeps_sums()  ? (i - row_) * p_.width + x
                       : p_.has_strip() ? i % 2 * p_.width + x
                                        : flip_ ^= 1;
    return sums_ + at * 2 * kBlockWords;
  }

  [[nodiscard]] Result result(int64_t i, int64_t j, const float* sums) const {
    const int64_t m = i * kBlock, n = j * kBlock;
    return {sums,
            c_ + (m * g_.c_row + n) * item_,
            g_.c_row * item_,
            std::min(kBlock, g_.m - m),
            std::min(kBlock, g_.n - n),
            g_.wide,
            g_.accumulate};
  }

  // What the last block left to do.
  TESSERA_TILE_WORDS void finish() {
    _tile_stored(0, held_, 64);
    _tile_stored(1, held_ + kTileWords, 64);
    _tile_stored(2, held_ + 2 * kTileWords, 64);
    _tile_stored(3, held_ + 3 * kTileWords, 64);
    for (Result* r : {&before_, &held_result_}) {
      for (int64_t i = 0; i < r->m; ++i) write_row(*r, i);
      r->m = 0;
    }
  }

  const Plan& p_;
  const Gemm& g_;
  uint32_t *panel_, *packed_a_;
  float *sums_, *held_ = nullptr;  // held_: where the sums that lie in tiles will go
  const bf16 *a_ = nullptr, *b_ = nullptr;
  std::byte* c_ = nullptr;
  int64_t item_ = 0, row_ = 0, row_end_ = 0, column_ = 0, column_end_ = 0, flip_ = 0;
  Result before_, held_result_;  // of the block whose sums are stored, and of that in tiles
};

}  // namespace

bool tile_takes(const Gemm& g) { return g.dtype == DType::bf16 && micro::has_tiles(); }

void tile_gemm(std::span<const Gemm> all) {
  SmallVector<Plan, 1> plans;
  const int64_t share = part_share(all);
  for (const Gemm& g : all) plans.push_back(plan_of(g, share));
  share_parts(plans, kTask, [&](int64_t begin, int64_t end, int32_t* own) {
    const micro::TileScope scope;
    each_task(plans, begin, end, [&](const Plan& p, int64_t task) {
      Part(p, task, reinterpret_cast<uint32_t*>(own)).run();
    });
  });
}

}  // namespace tessera

#else

namespace tessera {

bool tile_takes(const Gemm&) { return false; }
void tile_gemm(std::span<const Gemm>) {}

}  // namespace tessera

#endif
