// SPDX-License-Identifier: Apache-2.0
// How bf16 operands lie for matrix tiles. A tile of a holds 16 rows of 32 elements; a tile of b
// holds 16 pairs of rows by 16 columns, where a word has the even row below and the odd row above.
// A block here is two tiles: of a, 32 rows by 32 of k; of b, 32 of k by 32 columns. What an operand
// lacks to a whole block is zero. Included by tile_gemm.cpp, for machines that have tiles, and by
// thin_gemm.cpp, for those that have dot products of pairs.
#pragma once

#include "tessera/core/dtype.h"
#include "tessera/kernels/products/intrinsics_impl.h"
#include "tessera/kernels/products/micro_words_impl.h"

#include <cstdint>

#define TESSERA_TILE_WORDS                                                      \
  __attribute__((                                                               \
      target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16," \
             "prfchw")))

namespace tessera::tile_words {

constexpr int64_t kBlock = 32, kTileWords = 256, kBlockWords = 512;

TESSERA_TILE_WORDS inline __mmask32 first(int64_t n) {
  return n >= 32 ? ~__mmask32{0} : n <= 0 ? 0 : (__mmask32{1} << n) - 1;
}

// 32 elements of which the first n count; none are read beyond them.
TESSERA_TILE_WORDS inline __m512i read(const bf16* from, int64_t n) {
  return _mm512_maskz_loadu_epi16(first(n), from);
}

// Rows 2i and 2i + 1 of an operand that lies row by row, as words of columns 0-15 and 16-31.
TESSERA_TILE_WORDS inline void pair(const bf16* from, int64_t row, int64_t i, int64_t rows,
                                    int64_t columns, __m512i& low, __m512i& high) {
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  const __m512i even = _mm512_permutexvar_epi64(
                    order, read(from + 2 * i * row, 2 * i < rows ? columns : 0)),
                odd = _mm512_permutexvar_epi64(
                    order, read(from + (2 * i + 1) * row, 2 * i + 1 < rows ? columns : 0));
  low = _mm512_unpacklo_epi16(even, odd);
  high = _mm512_unpackhi_epi16(even, odd);
}

// A block of b (k, n) that lies row by row.
TESSERA_TILE_WORDS inline void b_by_rows(const bf16* from, int64_t row, int64_t k, int64_t n,
                                         uint32_t* to) {
  for (int64_t i = 0; i < 16; ++i) {
    __m512i low, high;
    pair(from, row, i, k, n, low, high);
    _mm512_store_si512(to + 16 * i, low);
    _mm512_store_si512(to + kTileWords + 16 * i, high);
  }
}

// A block of b (k, n) that lies column by column: there, words are in place already.
TESSERA_TILE_WORDS inline void b_by_columns(const bf16* from, int64_t column, int64_t k, int64_t n,
                                            uint32_t* to) {
  for (int64_t half = 0; half < 32; half += 16, to += kTileWords) {
    micro::Words rows[16];
    for (int64_t j = 0; j < 16; ++j)
      rows[j] = (micro::Words)read(from + (half + j) * column, half + j < n ? k : 0);
    micro::transpose_words(rows);
    for (int64_t j = 0; j < 16; ++j) micro::store(to + 16 * j, rows[j]);
  }
}

// Row i of `blocks` blocks of a, which lies row by row.
TESSERA_TILE_WORDS inline void a_row(const bf16* from, int64_t i, int64_t k, int64_t blocks,
                                     uint32_t* to) {
  for (int64_t s = 0; s < blocks; ++s)
    _mm512_store_si512(to + s * kBlockWords + 16 * i, read(from + 32 * s, k - 32 * s));
}

// A block of a (m, k) that lies column by column.
TESSERA_TILE_WORDS inline void a_by_columns(const bf16* from, int64_t column, int64_t m, int64_t k,
                                            uint32_t* to) {
  micro::Words lows[16], highs[16];
  for (int64_t i = 0; i < 16; ++i) {
    __m512i low, high;
    pair(from, column, i, k, m, low, high);
    lows[i] = (micro::Words)low, highs[i] = (micro::Words)high;
  }
  micro::transpose_words(lows);
  micro::transpose_words(highs);
  for (int64_t i = 0; i < 16; ++i) {
    micro::store(to + 16 * i, lows[i]);
    micro::store(to + kTileWords + 16 * i, highs[i]);
  }
}

}  // namespace tessera::tile_words
