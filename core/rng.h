// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: a pure function of (seed, stream, element index), so that any piece
// of a tensor can be filled anywhere with the same bits. Philox 4x32-10 (Salmon et al., "Parallel
// random numbers: as easy as 1, 2, 3", SC 2011). Normals by Box-Muller from +, -, *, fma and sqrt
// alone (contraction off), so they are bitwise equal on every instruction set and device.
#pragma once

#include "tessera/core/api.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace tessera {

struct RngKey {
  uint64_t seed = 0;
  uint64_t stream = 0;
  bool operator==(const RngKey&) const = default;
};

/// FNV-1a: stable across machines; names a stream after a parameter or a call.
constexpr uint64_t stream_of(std::string_view name) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

namespace rng {

// Inlined wherever they are used: loops compiled for an instruction set must not call copies
// compiled for the baseline.
#define TESSERA_RNG __attribute__((always_inline)) TESSERA_HD
#ifdef __CUDA_ARCH__
TESSERA_RNG float mul(float a, float b) { return __fmul_rn(a, b); }
TESSERA_RNG float add(float a, float b) { return __fadd_rn(a, b); }
TESSERA_RNG float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
TESSERA_RNG float root(float a) { return __fsqrt_rn(a); }
#else
TESSERA_RNG float mul(float a, float b) { return a * b; }
TESSERA_RNG float add(float a, float b) { return a + b; }
TESSERA_RNG float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
TESSERA_RNG float root(float a) { return __builtin_sqrtf(a); }
#endif

struct Block {
  uint32_t v[4];
};

TESSERA_HD Block philox(RngKey key, uint64_t counter) {
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32);
  uint32_t c2 = static_cast<uint32_t>(key.stream), c3 = static_cast<uint32_t>(key.stream >> 32);
  uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0,
                   n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// In (0, 1): 23 bits and a half, which f32 holds exactly, so that neither end is reached.
TESSERA_RNG float unit(uint32_t bits) {
  return mul(add(static_cast<float>(bits >> 9), 0.5f), 0x1p-23f);
}

/// Natural logarithm on (0, 1), by 2^k * m with m in [sqrt(1/2), sqrt(2)) and the series of atanh.
TESSERA_RNG float log_unit(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x) - 0x3f3504f3u;
  const int k = static_cast<int32_t>(bits) >> 23;
  const float m = std::bit_cast<float>((bits & 0x7fffffu) + 0x3f3504f3u);
  // Division is avoided: 1/(m+1) by Newton steps from a linear guess, m+1 in [1.7, 2.42).
  const float d = add(m, 1.0f);
  float r = fma(d, -0.2393f, 0.9803f);
  r = mul(r, fma(-d, r, 2.0f));
  r = mul(r, fma(-d, r, 2.0f));
  r = mul(r, fma(-d, r, 2.0f));
  const float s = mul(add(m, -1.0f), r), z = mul(s, s);
  float p = fma(z, 0.1818181818f, 0.2222222222f);
  p = fma(p, z, 0.2857142857f);
  p = fma(p, z, 0.4f);
  p = fma(p, z, 0.6666666667f);
  p = fma(p, z, 2.0f);
  return fma(static_cast<float>(k), 0.6931471806f, mul(s, p));
}

/// cos and sin of a quarter-turn-reduced angle 2*pi*u, u in (0, 1).
TESSERA_RNG void turn(float u, float& c, float& s) {
  const float quarter = mul(u, 4.0f);
  const int q = static_cast<int>(add(quarter, 0.5f));
  const float t = mul(add(quarter, -static_cast<float>(q)), 1.57079632679f), z = mul(t, t);
  float sp = fma(z, 2.718311493e-6f, -1.984026855e-4f);
  sp = fma(sp, z, 8.333307e-3f);
  sp = fma(sp, z, -0.16666666f);
  sp = fma(mul(sp, z), t, t);
  float cp = fma(z, 2.443315711809948e-5f, -1.388731625493765e-3f);
  cp = fma(cp, z, 4.166664568298827e-2f);
  cp = fma(cp, z, -0.5f);
  cp = fma(cp, z, 1.0f);
  // Signs by bits: q is 0 to 4, cos is negative for 1 and 2, sin for 2 and 3.
  const auto flipped = [](float v, int flip) {
    return std::bit_cast<float>(std::bit_cast<uint32_t>(v) ^ static_cast<uint32_t>(flip) << 30);
  };
  c = flipped(q & 1 ? sp : cp, (q + 1) & 2);
  s = flipped(q & 1 ? cp : sp, q & 2);
}

#undef TESSERA_RNG

struct Floats {
  float v[4];
};

/// Four uniforms in (0, 1): elements 4*block .. 4*block+3 of the stream.
TESSERA_HD Floats uniform4(RngKey key, uint64_t block) {
  const Block b = philox(key, block);
  return {{unit(b.v[0]), unit(b.v[1]), unit(b.v[2]), unit(b.v[3])}};
}

/// Four standard normals: elements 4*block .. 4*block+3 of the stream.
TESSERA_HD Floats normal4(RngKey key, uint64_t block) {
  const Floats u = uniform4(key, block);
  Floats n;
  for (int pair = 0; pair < 2; ++pair) {
    const float radius = root(mul(-2.0f, log_unit(u.v[2 * pair])));
    float c, s;
    turn(u.v[2 * pair + 1], c, s);
    n.v[2 * pair] = mul(radius, c);
    n.v[2 * pair + 1] = mul(radius, s);
  }
  return n;
}

}  // namespace rng
}  // namespace tessera
