// SPDX-License-Identifier: Apache-2.0
// Register-tiled products. This file is compiled with contraction on: each step is one fused
// multiply-add where the machine has it. f32 is compiled for every instruction set; f64 serves
// tests and references.
#include "tessera/core/parallel.h"
#include "tessera/kernels/products/micro_gemm_impl.h"

namespace tessera::micro {
namespace {

// c (MR, NV lanes) = or += a (MR, k) b (k, NV lanes); a by any strides, rows of b and c by ldb and
// ldc.
template <class T, int MR, int NV>
TESSERA_INLINE void tile(int64_t k, const T* a, int64_t a_row, int64_t a_col, const T* b,
                         int64_t ldb, T* c, int64_t ldc, bool accumulate) {
  Lanes<T> acc[MR][NV];
  for (int i = 0; i < MR; ++i) {
    for (int j = 0; j < NV; ++j)
      acc[i][j] = accumulate ? load(c + i * ldc + j * kLanes<T>) : Lanes<T>{};
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
TESSERA_INLINE void column_of_tiles(int64_t m, int64_t k, const T* a, int64_t a_row, int64_t a_col,
                                    const T* b, int64_t ldb, T* c, int64_t ldc, bool accumulate) {
  constexpr int kRows = NV == 1 ? 12 : (NV == 2 ? 8 : 6);
  int64_t i = 0;
  for (; i + kRows <= m; i += kRows)
    tile<T, kRows, NV>(k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc, accumulate);
  for (; i + 4 <= m; i += 4)
    tile<T, 4, NV>(k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc, accumulate);
  for (; i < m; ++i)
    tile<T, 1, NV>(k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc, accumulate);
}

template <class T>
TESSERA_INLINE void rows_of_tiles(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row,
                                  int64_t a_col, const T* b, int64_t ldb, T* c, int64_t ldc,
                                  bool accumulate) {
  int64_t j = 0;
  for (; j + 4 * kLanes<T> <= n; j += 4 * kLanes<T>)
    column_of_tiles<T, 4>(m, k, a, a_row, a_col, b + j, ldb, c + j, ldc, accumulate);
  for (; j + 2 * kLanes<T> <= n; j += 2 * kLanes<T>)
    column_of_tiles<T, 2>(m, k, a, a_row, a_col, b + j, ldb, c + j, ldc, accumulate);
  for (; j < n; j += kLanes<T>)
    column_of_tiles<T, 1>(m, k, a, a_row, a_col, b + j, ldb, c + j, ldc, accumulate);
}

}  // namespace

template <>
void block(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_col,
           const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  simd([&]()
           TESSERA_LAMBDA { rows_of_tiles(m, n, k, a, a_row, a_col, b, ldb, c, ldc, accumulate); });
}

template <>
void block(int64_t m, int64_t n, int64_t k, const double* a, int64_t a_row, int64_t a_col,
           const double* b, int64_t ldb, double* c, int64_t ldc, bool accumulate) {
  rows_of_tiles(m, n, k, a, a_row, a_col, b, ldb, c, ldc, accumulate);
}

}  // namespace tessera::micro
