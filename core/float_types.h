// SPDX-License-Identifier: Apache-2.0
// Storage types narrower than f32: bf16, f16, f8_e4m3 (finite-only, OCP "fn") and f8_e5m2.
// They only convert, by round-to-nearest-even; arithmetic is done in f32. Integer bit work alone,
// so that the same header gives the same bits on every instruction set. A GPU converts bf16 and f16
// by its instructions, to the same bits, except that each NaN becomes one NaN. Source: OCP 8-bit
// floating point 1.0.
#pragma once

#include "tessera/core/api.h"

#include <bit>
#include <cstdint>

// Emulated devices define __CUDA_ARCH__ too, but their compiler has no PTX.
#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
#define TESSERA_DEVICE_CONVERSIONS
#endif

namespace tessera {

namespace detail {

// Narrows f32 to a float of `E` exponent and `M` mantissa bits. `kFinite`: no infinities, all-ones
// is NaN (e4m3fn).
template <int E, int M, bool kFinite> TESSERA_HD uint32_t narrow_float(float value) {
#ifdef TESSERA_DEVICE_CONVERSIONS
  if constexpr (E == 5 && M == 10) {
    uint16_t narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow) : "f"(value));
    return narrow;
  }
#endif
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 31) << (E + M);
  const uint32_t magnitude = bits & 0x7fffffffu;
  constexpr int kBias = (1 << (E - 1)) - 1;
  constexpr uint32_t kNan = (1u << (E + M)) - 1;
  constexpr uint32_t kInf = kFinite ? kNan : ((1u << E) - 1) << M;
  if (magnitude > 0x7f800000u) return sign | kNan;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  uint32_t mantissa = (magnitude & 0x7fffffu) | (magnitude >> 23 ? 0x800000u : 0);
  int shift = 23 - M;
  int biased = exponent + kBias;
  if (biased < 1) {  // subnormal in the narrow type
    shift += 1 - biased;
    biased = 0;
    if (shift > 25) return sign;
  }
  const uint32_t half = 1u << (shift - 1), rest = mantissa & ((1u << shift) - 1);
  uint32_t kept = mantissa >> shift;
  if (rest > half || (rest == half && (kept & 1u))) ++kept;
  // A carry out of the mantissa moves the exponent up by itself.
  const uint32_t result = biased == 0 ? kept : (static_cast<uint32_t>(biased - 1) << M) + kept;
  return sign | (result >= kInf || biased > (1 << E) ? kInf : result);
}

template <int E, int M, bool kFinite> TESSERA_HD float widen_float(uint32_t bits) {
#ifdef TESSERA_DEVICE_CONVERSIONS
  if constexpr (E == 5 && M == 10) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(static_cast<uint16_t>(bits)));
    return wide;
  }
#endif
  constexpr int kBias = (1 << (E - 1)) - 1;
  const uint32_t sign = (bits >> (E + M)) << 31;
  const uint32_t magnitude = bits & ((1u << (E + M)) - 1);
  const uint32_t exponent = magnitude >> M;
  uint32_t mantissa = magnitude & ((1u << M) - 1);
  if (kFinite ? magnitude == (1u << (E + M)) - 1 : exponent == (1u << E) - 1) {
    return std::bit_cast<float>(sign | 0x7f800000u | (kFinite || mantissa ? 0x400000u : 0));
  }
  if (exponent == 0) {
    if (mantissa == 0) return std::bit_cast<float>(sign);
    int shift = 0;
    while (!(mantissa >> M)) mantissa <<= 1, ++shift;
    mantissa &= (1u << M) - 1;
    return std::bit_cast<float>(sign | (static_cast<uint32_t>(128 - kBias - shift) << 23) |
                                (mantissa << (23 - M)));
  }
  return std::bit_cast<float>(sign | ((exponent + static_cast<uint32_t>(127 - kBias)) << 23) |
                              (mantissa << (23 - M)));
}

}  // namespace detail

struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  // Branch-free so that conversion loops vectorise: NaN keeps its top bits and gets a quiet bit.
  TESSERA_HD explicit bf16(float value) {
#ifdef TESSERA_DEVICE_CONVERSIONS
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    const uint32_t b = std::bit_cast<uint32_t>(value);
    const uint32_t r = value != value ? b | 0x400000u : b + 0x7fffu + ((b >> 16) & 1u);
    bits = static_cast<uint16_t>(r >> 16);
#endif
  }
  TESSERA_HD operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

#define TESSERA_NARROW_FLOAT(Name, Bits, E, M, kFinite)                                    \
  struct Name {                                                                            \
    Bits bits = 0;                                                                         \
    Name() = default;                                                                      \
    TESSERA_HD explicit Name(float v)                                                      \
        : bits(static_cast<Bits>(detail::narrow_float<E, M, kFinite>(v))) {}               \
    TESSERA_HD operator float() const { return detail::widen_float<E, M, kFinite>(bits); } \
  }
TESSERA_NARROW_FLOAT(f16, uint16_t, 5, 10, false);
TESSERA_NARROW_FLOAT(f8_e4m3, uint8_t, 4, 3, true);
TESSERA_NARROW_FLOAT(f8_e5m2, uint8_t, 5, 2, false);
#undef TESSERA_NARROW_FLOAT
#undef TESSERA_DEVICE_CONVERSIONS

}  // namespace tessera
