// SPDX-License-Identifier: Apache-2.0
// bf16 operands of attention as matrix tiles want them: plain rows on the left of a product, words
// of two rows on the right. Rows have d values and lie in d32, which is d up to a multiple of 32.
#pragma once

#include "tessera/core/parallel.h"
#include "tessera/kernels/products/micro_tiles_impl.h"
#include "tessera/kernels/products/micro_words_impl.h"

#include <bit>
#include <cstring>

namespace tessera::op::attention::tiles {

using micro::transpose_words;

/// Columns of n transposed rows: a product over 32 of them may begin at the last one.
inline int64_t columns_of(int64_t n) { return micro::round_up(n, 32) + 32; }

/// x to bf16, in the upper half of the word. A NaN made of bf16 inputs stays one.
TESSERA_INLINE uint32_t rounded(float x) {
  const uint32_t b = std::bit_cast<uint32_t>(x);
  return b + 0x7fffu + ((b >> 16) & 1u);
}

/// n rows of d values, `step` bytes apart, to rows of d32 with zeros behind.
TESSERA_INLINE void copy_rows(const std::byte* from, int64_t step, int64_t col, int64_t n,
                              int64_t d, int64_t d32, bf16* to) {
  for (int64_t i = 0; i < n; ++i) {
    const bf16* x = reinterpret_cast<const bf16*>(from + i * step);
    bf16* row = to + i * d32;
    if (col == 1) std::memcpy(static_cast<void*>(row), x, static_cast<size_t>(d) * 2);
    else
      for (int64_t j = 0; j < d; ++j) row[j] = x[j * col];
    for (int64_t j = d; j < d32; ++j) row[j].bits = 0;
  }
}
TESSERA_INLINE void clear(bf16* at, int64_t n) {
  std::memset(static_cast<void*>(at), 0, static_cast<size_t>(n) * 2);
}

/// (width, n) words to (n, width).
template <int64_t width>
TESSERA_INLINE void transpose(const uint32_t* from, int64_t n, uint32_t* to) {
  for (int64_t j = 0; j < n; j += 16) {
    for (int64_t i = 0; i < width; i += 16)
      transpose_words(from + i * n + j, n, to + j * width + i, width);
  }
}
/// (n, width) sums to rows of `row` values.
template <int64_t width>
TESSERA_INLINE void transpose_back(const float* from, int64_t n, float* to, int64_t row) {
  for (int64_t j = 0; j < n; j += 16) {
    for (int64_t i = 0; i < width; i += 16) {
      transpose_words(reinterpret_cast<const uint32_t*>(from + j * width + i), width,
                      reinterpret_cast<uint32_t*>(to + i * row + j), row);
    }
  }
}

/// n rows of numbers, an even count, to n / 2 rows of words of two.
template <int64_t width> TESSERA_INLINE void pair_rows(const float* from, int64_t n, uint32_t* to) {
  for (int64_t j = 0; j < n; j += 2, from += 2 * width, to += width) {
#pragma GCC ivdep
    for (int64_t i = 0; i < width; ++i)
      to[i] = rounded(from[i]) >> 16 | (rounded(from[width + i]) & 0xffff0000u);
  }
}
/// The same of bf16 rows, of the first `columns` values of each.
TESSERA_INLINE void pair_rows(const bf16* from, int64_t row, int64_t n, int64_t columns,
                              uint32_t* to) {
  for (int64_t j = 0; j < n; j += 2, from += 2 * row, to += columns) {
    const bf16 *a = from, *b = from + row;
#pragma GCC ivdep
    for (int64_t i = 0; i < columns; ++i)
      to[i] = static_cast<uint32_t>(a[i].bits) | static_cast<uint32_t>(b[i].bits) << 16;
  }
}

/// n rows of d values to columns: (d up to a multiple of 16, columns), zeros behind them up to
/// columns_of(n). scratch: 32 d32 words.
TESSERA_INLINE void transpose_rows(const std::byte* from, int64_t step, int64_t col, int64_t n,
                                   int64_t d, int64_t d32, uint32_t* scratch, bf16* to,
                                   int64_t columns) {
  const int64_t d16 = micro::round_up(d, 16);
  uint32_t* pairs = scratch;                                 // (16, d16)
  auto* rows = reinterpret_cast<bf16*>(scratch + 16 * d32);  // (32, d32)
  for (int64_t i = 0; i < columns_of(n); i += 32) {
    const int64_t here = std::clamp<int64_t>(n - i, 0, 32);
    copy_rows(from + i * step, step, col, here, d, d32, rows);
    clear(rows + here * d32, (32 - here) * d32);
    pair_rows(rows, d32, 32, d16, pairs);
    auto* words = reinterpret_cast<uint32_t*>(to + i);
    for (int64_t j = 0; j < d16; j += 16)
      transpose_words(pairs + j, d16, words + j * columns / 2, columns / 2);
  }
}

/// c (d16, width) += the first n of `columns` columns of a (d16, columns) times b, n (up to a
/// multiple of 32) rows in pairs, those behind n zeros. Of a's columns only `there` are of the keys
/// at hand and what it is padded with is zero; where others follow the n, the last are copied to
/// `scratch`, 16 d16 words: 0 times an infinity among them would be NaN.
template <int64_t width>
TESSERA_INLINE void add_columns(int64_t d16, int64_t n, const bf16* a, int64_t columns,
                                int64_t there, uint32_t* scratch, const uint32_t* b, float* c) {
  const bool clean = n % 32 == 0 || n >= there;
  const int64_t whole = clean ? micro::round_up(n, 32) : n / 32 * 32;
  if (whole > 0) micro::tile_block(d16, width, whole, a, columns, b, width, c, width, true);
  if (clean) return;
  auto* strip = reinterpret_cast<bf16*>(scratch);  // (d16, 32)
  for (int64_t i = 0; i < d16; ++i) {
    const bf16* from = a + i * columns + whole;
    for (int64_t j = 0; j < 32; ++j) strip[i * 32 + j].bits = whole + j < n ? from[j].bits : 0;
  }
  micro::tile_block(d16, width, 32, strip, 32, b + whole / 2 * width, width, c, width, true);
}

/// c (n, d16) += a (n up to a multiple of 16, width) times b (width / 2, d16), where the rows
/// behind n belong to others; scratch: 16 d16 floats.
template <int64_t width>
TESSERA_INLINE void add_rows(int64_t n, int64_t d16, const bf16* a, const uint32_t* b,
                             float* scratch, float* c) {
  const int64_t whole = n / 16 * 16, rest = (n - whole) * d16;
  if (whole > 0) micro::tile_block(whole, d16, width, a, width, b, d16, c, d16, true);
  if (rest == 0) return;
  float* last = c + whole * d16;
  for (int64_t i = 0; i < 16 * d16; ++i) scratch[i] = i < rest ? last[i] : 0;
  micro::tile_block(16, d16, width, a + whole * width, width, b, d16, scratch, d16, true);
  for (int64_t i = 0; i < rest; ++i) last[i] = scratch[i];
}

}  // namespace tessera::op::attention::tiles
