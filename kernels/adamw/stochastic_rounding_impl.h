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
/// What the words of 2^32 elements in a row are made with: one Philox block.
struct WordKey {
  uint32_t first, second;
};
TESSERA_HD WordKey word_key(RngKey key, uint64_t i) {
  const Block b = philox(key, i >> 32);
  return {b.v[0], b.v[1]};
}
/// The word of element i, by two keyed rounds of multiply and shift (constants: Wellons, 2018): a
/// tenth of what Philox costs, and rounding needs fair bits, not unpredictable ones.
TESSERA_HD uint32_t word(WordKey key, uint64_t i) {
  uint32_t x = static_cast<uint32_t>(i) ^ key.first;
  x = (x ^ x >> 16) * 0x21F0AAADu;
  x = ((x ^ x >> 15) + key.second) * 0x735A2D97u;
  return x ^ x >> 15;
}

/// Three draws of 16 bits from the word of an element: of its parameter and its two moments.
/// That the last shares its halves with the others shifts no mean: none of the three reads what
/// the others are rounded to.
TESSERA_HD uint32_t parameter_bits(uint32_t word) { return word & 0xffffu; }
TESSERA_HD uint32_t first_bits(uint32_t word) { return word >> 16; }
TESSERA_HD uint32_t second_bits(uint32_t word) { return word >> 8 & 0xffffu; }

/// `sixteen` are random bits; infinity stays, NaN stays NaN, what bf16 holds exactly stays.
TESSERA_HD bf16 round_stochastic(float x, uint32_t sixteen) {
  const uint32_t b = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (b + sixteen) >> 16, quiet = (b >> 16) | 0x40u;
  bf16 y;
  y.bits = static_cast<uint16_t>((b & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
  return y;
}

}  // namespace tessera::rng
