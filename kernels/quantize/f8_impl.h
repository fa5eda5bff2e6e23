// SPDX-License-Identifier: Apache-2.0
// f8 conversions for loops: the numbers of core/float_types.h without branches, so that they
// vectorise. To f8 only from what lies within its finite range, or NaN.
#pragma once

#include "tessera/core/float_types.h"

#include <bit>
#include <cstdint>
#include <type_traits>

namespace tessera {

template <class F8> struct F8Format;
template <> struct F8Format<f8_e4m3> {
  static constexpr int kMantissa = 3, kBias = 7;
  static constexpr uint32_t kFirstSpecial = 0x7f;  // NaN alone
};
template <> struct F8Format<f8_e5m2> {
  static constexpr int kMantissa = 2, kBias = 15;
  static constexpr uint32_t kFirstSpecial = 0x7c;  // infinity, then NaN
};

/// v, at most the largest finite value in magnitude, to nearest even.
template <class F8> TESSERA_INLINE F8 narrow_finite(float v) {
  using F = F8Format<F8>;
  constexpr int kShift = 23 - F::kMantissa;
  constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(127 + 1 - F::kBias) << 23;
  // Added to a number, this leaves whole subnormal units of F8 in the last places.
  constexpr uint32_t kUnits = static_cast<uint32_t>(127 + 1 - F::kBias - F::kMantissa + 23) << 23;
  const uint32_t b = std::bit_cast<uint32_t>(v), a = b & 0x7fffffffu;
  const uint32_t normal = ((a + ((1u << (kShift - 1)) - 1) + ((a >> kShift) & 1u)) >> kShift) -
                          (static_cast<uint32_t>(127 - F::kBias) << F::kMantissa);
  const float shifted = std::bit_cast<float>(a) + std::bit_cast<float>(kUnits);
  const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - kUnits;
  const uint32_t finite = a < kSmallestNormal ? subnormal : normal;
  F8 y;
  y.bits = static_cast<uint8_t>((b >> 31 << 7) | (a > 0x7f800000u ? 0x7fu : finite));
  return y;
}

template <class F8> TESSERA_INLINE float widen(F8 v) {
  using F = F8Format<F8>;
  const uint32_t bits = v.bits, sign = bits >> 7 << 31, m = bits & 0x7fu;
  // The same digits with f32's bias; a power of two moves them to their place, subnormals too.
  constexpr float kMove = std::bit_cast<float>(static_cast<uint32_t>(254 - F::kBias) << 23);
  const float finite = std::bit_cast<float>(m << (23 - F::kMantissa)) * kMove;
  const uint32_t special =
      F::kFirstSpecial == 0x7f || m > F::kFirstSpecial ? 0x7fc00000u : 0x7f800000u;
  const uint32_t magnitude = m >= F::kFirstSpecial ? special : std::bit_cast<uint32_t>(finite);
  return std::bit_cast<float>(sign | magnitude);
}

}  // namespace tessera
