// SPDX-License-Identifier: Apache-2.0
// Transposition of 16 x 16 words in registers: a word may be a float or two bf16 numbers.
#pragma once

#include "tessera/kernels/shared/micro_gemm_impl.h"

namespace tessera::micro {

using Words = Lanes<uint32_t>;

// Swaps the blocks of `step` beside the diagonal.
template <uint32_t step> TESSERA_INLINE void exchange(Words (&x)[16]) {
  Words upper, lower;
  for (uint32_t i = 0; i < 16; ++i) {
    upper[i] = (i & step) ? 16 + i - step : i;
    lower[i] = (i & step) ? 16 + i : i + step;
  }
  for (uint32_t i = 0; i < 16; ++i) {
    if (i & step) continue;
    const Words a = x[i], b = x[i + step];
    x[i] = __builtin_shuffle(a, b, upper);
    x[i + step] = __builtin_shuffle(a, b, lower);
  }
}
TESSERA_INLINE void transpose_words(Words (&x)[16]) {
  exchange<8>(x);
  exchange<4>(x);
  exchange<2>(x);
  exchange<1>(x);
}
TESSERA_INLINE void transpose_words(const uint32_t* from, int64_t from_row, uint32_t* to,
                                    int64_t to_row) {
  Words x[16];
  for (int64_t i = 0; i < 16; ++i) x[i] = load(from + i * from_row);
  transpose_words(x);
  for (int64_t i = 0; i < 16; ++i) store(to + i * to_row, x[i]);
}

}  // namespace tessera::micro
