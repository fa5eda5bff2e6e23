// SPDX-License-Identifier: Apache-2.0
// Register-tiled products of blocks that lie in cache, for small matrix products and for attention. Files that include
// this are compiled with contraction on: each step is one fused multiply-add where the machine has it.
#pragma once

#include <cstdint>
#include <cstring>

#include "tessera/core/api.h"

// Vectors never cross a call here: everything is inlined into one function, so their calling convention is moot.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace tessera::micro {

template <class T>
using Lanes __attribute__((vector_size(64))) = T;
template <class T>
inline constexpr int64_t kLanes = 64 / sizeof(T);

constexpr int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

template <class T>
TESSERA_INLINE Lanes<T> load(const T* p) {
  Lanes<T> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
template <class T, class V>
TESSERA_INLINE void store(T* p, const V& v) {
  std::memcpy(p, &v, sizeof(v));
}

// c (MR, NV lanes) = or += a (MR, k) b (k, NV lanes); a by any strides, rows of b and c by ldb and ldc.
template <class T, int MR, int NV>
TESSERA_INLINE void tile(int64_t k, const T* a, int64_t a_row, int64_t a_col, const T* b, int64_t ldb, T* c, int64_t ldc,
                         bool accumulate) {
  Lanes<T> acc[MR][NV];
  for (int i = 0; i < MR; ++i) {
    for (int j = 0; j < NV; ++j) acc[i][j] = accumulate ? load(c + i * ldc + j * kLanes<T>) : Lanes<T>{};
  }
  for (int64_t p = 0; p < k; ++p) {
    Lanes<T> row[NV];
    for (int j = 0; j < NV; ++j) row[j] = load(b + p * ldb + j * kLanes<T>);
    for (int i = 0; i < MR; ++i) {
      const T scalar = a[i * a_row + p * a_col];
      for (int j = 0; j < NV; ++j) acc[i][j] += scalar * row[j];
    }
  }
  for (int i = 0; i < MR; ++i) {
    for (int j = 0; j < NV; ++j) store(c + i * ldc + j * kLanes<T>, acc[i][j]);
  }
}

template <class T, int NV>
TESSERA_INLINE void column_of_tiles(int64_t m, int64_t k, const T* a, int64_t a_row, int64_t a_col, const T* b, int64_t ldb,
                                    T* c, int64_t ldc, bool accumulate) {
  constexpr int kRows = NV == 1 ? 12 : (NV == 2 ? 8 : 6);
  int64_t i = 0;
  for (; i + kRows <= m; i += kRows) tile<T, kRows, NV>(k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc, accumulate);
  for (; i + 4 <= m; i += 4) tile<T, 4, NV>(k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc, accumulate);
  for (; i < m; ++i) tile<T, 1, NV>(k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc, accumulate);
}

/// c (m, n) = or += a (m, k) b (k, n). n is a multiple of the lanes: buffers are padded.
template <class T>
TESSERA_INLINE void block(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, int64_t a_col, const T* b, int64_t ldb,
                          T* c, int64_t ldc, bool accumulate) {
  int64_t j = 0;
  for (; j + 4 * kLanes<T> <= n; j += 4 * kLanes<T>) column_of_tiles<T, 4>(m, k, a, a_row, a_col, b + j, ldb, c + j, ldc, accumulate);
  for (; j + 2 * kLanes<T> <= n; j += 2 * kLanes<T>) column_of_tiles<T, 2>(m, k, a, a_row, a_col, b + j, ldb, c + j, ldc, accumulate);
  for (; j < n; j += kLanes<T>) column_of_tiles<T, 1>(m, k, a, a_row, a_col, b + j, ldb, c + j, ldc, accumulate);
}

}  // namespace tessera::micro
