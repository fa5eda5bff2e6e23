// SPDX-License-Identifier: Apache-2.0
// The mask of a piece of a block, as bits. A condition is evaluated for all elements of a thread at
// a time and the mask's & and | join words: asked for each element, a mask would cost ten times as
// much as the products of its block.
#pragma once

#include "tessera/kernels/mask/mask_view_impl.h"

// A loop that stays one in device code: unrolled, it would fill the instruction cache of the
// kernels around it.
#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
#define TESSERA_ROLLED _Pragma("unroll 1")
#else
#define TESSERA_ROLLED
#endif

namespace tessera::op {

/// A bit for each column of each of a thread's rows.
template <int kRows> struct SeenBits {
  uint32_t of[kRows];
  friend TESSERA_HD SeenBits operator&(SeenBits a, const SeenBits& b) {
    for (int r = 0; r < kRows; ++r) a.of[r] &= b.of[r];
    return a;
  }
  friend TESSERA_HD SeenBits operator|(SeenBits a, const SeenBits& b) {
    for (int r = 0; r < kRows; ++r) a.of[r] |= b.of[r];
    return a;
  }
};

/// What the rows row(0 ...), each a query, see of the keys column(0 ...), or with kOfKeys which of
/// the queries column(0 ...) see the keys row(0 ...). All lie in the block that `seen` is of, or
/// behind the last token: nothing is seen there.
template <int kRows, int kColumns, bool kOfKeys, class Row, class Column>
TESSERA_HD SeenBits<kRows> seen_bits(const MaskView& view, const BlockSeen& seen, int64_t b,
                                     Row row, Column column) {
  using Kind = AttentionMask::Kind;
  const TokenBlocks &rows = kOfKeys ? view.key : view.query,
                    &columns = kOfKeys ? view.query : view.key;
  const auto last_at_most = [](int64_t i, int64_t n) { return i < n ? i : n - 1; };
  SeenBits<kRows> bits;
  for (int r = 0; r < kRows; ++r) bits.of[r] = ~0U;
  if (seen.by == BlockSeen::kByMask) {
    bits = view.mask.evaluate(bits, [&](Kind kind, int64_t n) {
      int64_t numbers[kRows];
      SeenNumbers of_rows[kRows];
      SeenBits<kRows> found;
      for (int r = 0; r < kRows; ++r) {
        numbers[r] = rows.ids(kind).at(b, last_at_most(row(r), rows.n));
        if constexpr (!kOfKeys) of_rows[r] = seen_numbers(kind, n, numbers[r]);
        found.of[r] = 0;
      }
      TESSERA_ROLLED
      for (int i = 0; i < kColumns; ++i) {
        const int64_t number = columns.ids(kind).at(b, last_at_most(column(i), columns.n));
        if constexpr (kOfKeys) {
          const SeenNumbers of_column = seen_numbers(kind, n, number);
          for (int r = 0; r < kRows; ++r)
            found.of[r] |= static_cast<uint32_t>(of_column.has(numbers[r])) << i;
        } else {
          for (int r = 0; r < kRows; ++r)
            found.of[r] |= static_cast<uint32_t>(of_rows[r].has(number)) << i;
        }
      }
      return found;
    });
  } else if (seen.by >= 0) {
    for (int r = 0; r < kRows; ++r) {
      TESSERA_ROLLED
      for (int i = 0; i < kColumns; ++i) {
        const int64_t q = kOfKeys ? column(i) : row(r), k = kOfKeys ? row(r) : column(i);
        if ((view.word(seen, q) >> (k % kAttentionBlock) & 1) == 0) bits.of[r] &= ~(1U << i);
      }
    }
  }
  uint32_t there = 0;
  for (int i = 0; i < kColumns; ++i) there |= static_cast<uint32_t>(column(i) < columns.n) << i;
  for (int r = 0; r < kRows; ++r) bits.of[r] &= row(r) < rows.n ? there : 0;
  return bits;
}

#undef TESSERA_ROLLED

}  // namespace tessera::op
