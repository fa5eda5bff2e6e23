// SPDX-License-Identifier: Apache-2.0
// Values of tensors by a formula of their name, which tests/goldens/model_types.py computes too, so
// that goldens of whole models need no files of weights.
#pragma once

#include "tessera/kernels/views/views.h"

#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tessera::test {

/// SplitMix64 (Steele et al., 2014).
inline uint64_t split_mix(uint64_t x) {
  uint64_t z = x + 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// 64-bit FNV-1a.
inline uint64_t name_hash(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

/// Element i of a tensor of mean 0 and variance 1, from the hash of its name.
inline double formula_value(uint64_t hash, int64_t i) {
  const uint64_t bits = split_mix(hash + static_cast<uint64_t>(i)) >> 11;
  return std::sqrt(3.0) * (2 * (static_cast<double>(bits) / 9007199254740992.0) - 1);
}

/// The tensor of this name, f64.
inline Tensor formula_tensor(std::string_view name, const Shape& shape, double scale = 1,
                             double centre = 0) {
  const uint64_t hash = name_hash(name);
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(scale * formula_value(hash, i) + centre);
  return from_values(values, shape, DType::f64);
}

}  // namespace tessera::test
