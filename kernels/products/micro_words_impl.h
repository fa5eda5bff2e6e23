// SPDX-License-Identifier: Apache-2.0
// Transposition of 16 x 16 words in registers: a word may be a float or two bf16 numbers.
#pragma once

#include "tessera/kernels/products/micro_gemm_impl.h"

#include <utility>

namespace tessera::micro {

using Words = Lanes<uint32_t>;

// Swaps the blocks of `step` beside the diagonal.
template <size_t step, size_t... I>
TESSERA_INLINE void exchange(Words (&x)[16], std::index_sequence<I...>) {
  for (size_t i = 0; i < 16; ++i) {
    if (i & step) continue;
    const Words a = x[i], b = x[i + step];
    x[i] = __builtin_shufflevector(a, b, (I & step ? 16 + I - step : I)...);
    x[i + step] = __builtin_shufflevector(a, b, (I & step ? 16 + I : I + step)...);
  }
}
TESSERA_INLINE void transpose_words(Words (&x)[16]) {
  constexpr auto kColumns = std::make_index_sequence<16>();
  exchange<8>(x, kColumns);
  exchange<4>(x, kColumns);
  exchange<2>(x, kColumns);
  exchange<1>(x, kColumns);
}
TESSERA_INLINE void transpose_words(const uint32_t* from, int64_t from_row, uint32_t* to,
                                    int64_t to_row) {
  Words x[16];
  for (int64_t i = 0; i < 16; ++i) x[i] = load(from + i * from_row);
  transpose_words(x);
  for (int64_t i = 0; i < 16; ++i) store(to + i * to_row, x[i]);
}

}  // namespace tessera::micro
