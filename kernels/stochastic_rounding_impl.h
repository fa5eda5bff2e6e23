// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding to bf16: up with the probability of the part that is cut off, so that the
// expected value is the exact one. The random bits are a function of (seed, stream, step, global
// element index): the same on any mesh, device and instruction set.
#pragma once

#include "tessera/core/float_types.h"
#include "tessera/core/rng.h"

#include <cstdint>

namespace tessera::rng {

/// The key of one step: streams of two steps are two streams.
TESSERA_HD RngKey at_step(RngKey key, uint64_t step) {
  key.stream += step * 0x9E3779B97F4A7C15ull;
  return key;
}
/// Word i of a stream.
TESSERA_HD uint32_t word(RngKey key, uint64_t i) { return philox(key, i / 4).v[i % 4]; }

/// Three draws of 16 bits from the word of an element: of its parameter and its two moments.
TESSERA_HD uint32_t parameter_bits(uint32_t word) { return word & 0xffffu; }
TESSERA_HD uint32_t first_bits(uint32_t word) { return word >> 16; }
TESSERA_HD uint32_t second_bits(uint32_t word) { return (word * 0x9E3779B1u) >> 16; }

/// `sixteen` are random bits; infinity stays, NaN stays NaN, what bf16 holds exactly stays.
TESSERA_HD bf16 round_stochastic(float x, uint32_t sixteen) {
  const uint32_t b = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (b + sixteen) >> 16, quiet = (b >> 16) | 0x40u;
  bf16 y;
  y.bits = static_cast<uint16_t>((b & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
  return y;
}

}  // namespace tessera::rng
