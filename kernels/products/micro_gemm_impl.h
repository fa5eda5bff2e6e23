// SPDX-License-Identifier: Apache-2.0
// Vectors of one cache line, and products of blocks that lie in cache: what small matrix products
// and attention are made of.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <cstring>

namespace tessera::micro {

template <class T> using Lanes __attribute__((vector_size(64))) = T;
template <class T> inline constexpr int64_t kLanes = 64 / sizeof(T);

constexpr int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

template <class T> TESSERA_INLINE Lanes<T> load(const T* p) {
  Lanes<T> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
template <class T, class V> TESSERA_INLINE void store(T* p, const V& v) {
  std::memcpy(p, &v, sizeof(v));
}

/// c (m, n) = or += a (m, k) b (k, n), for float and double. a has any strides; rows of b and c
/// step by ldb and ldc. n is a multiple of the lanes: buffers are padded.
template <class T>
void block(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, int64_t a_col, const T* b,
           int64_t ldb, T* c, int64_t ldc, bool accumulate);

}  // namespace tessera::micro
