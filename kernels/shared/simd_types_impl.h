// SPDX-License-Identifier: Apache-2.0
// Which element types get their loops compiled for every instruction set: those of training, masks,
// and bits that are moved unread. The rest runs the baseline's code, since each copy costs compile
// time and size.
#pragma once

#include "tessera/core/parallel.h"

#include <type_traits>

namespace tessera {

template <class T>
inline constexpr bool kWorthSimd =
    std::is_same_v<T, float> || std::is_same_v<T, bf16> || std::is_same_v<T, bool> ||
    std::is_same_v<T, uint8_t> || std::is_same_v<T, uint16_t> || std::is_same_v<T, uint32_t>;

/// simd(f) if all of T... are worth it, else f().
template <class... T, class F> void simd_of(F&& f) {
  if constexpr ((kWorthSimd<T> && ...)) simd(f);
  else f();
}

}  // namespace tessera
