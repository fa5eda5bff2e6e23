// SPDX-License-Identifier: Apache-2.0
// The own kernel for small products: no set-up, operands packed only where lanes need it. It is
// also what multiplies f64, which serves tests and references.
#include "tessera/core/parallel.h"
#include "tessera/kernels/matmul/gemm_kinds_impl.h"
#include "tessera/kernels/products/micro_gemm_impl.h"

namespace tessera {
namespace {

constexpr int64_t kPanelColumns = 64, kPanelDepth = 256;

// (k, n) of any strides to (k, padded) with zeros in the padding.
template <class T>
void pack(const T* from, int64_t row, int64_t col, int64_t k, int64_t n, int64_t padded, T* to) {
  if (row == 1 && n == padded) {
    // A transposed operand: reading along its rows keeps to whole cache lines.
    constexpr int64_t kTile = 16;
    for (int64_t r = 0; r < k; r += kTile) {
      for (int64_t s = 0; s < n; ++s) {
        const T* x = from + s * col + r;
        for (int64_t i = 0; i < std::min(kTile, k - r); ++i) to[(r + i) * padded + s] = x[i];
      }
    }
    return;
  }
  for (int64_t r = 0; r < k; ++r) {
    for (int64_t s = 0; s < n; ++s) to[r * padded + s] = from[r * row + s * col];
    for (int64_t s = n; s < padded; ++s) to[r * padded + s] = T(0);
  }
}

// One product, panel by panel. Full lanes of b that lie row by row are read in place, others are
// packed; full lanes of c are written in place, others go through a padded block.
template <class T>
void panel_product(const Gemm& g, const T* a, const T* b, T* c, int64_t row_begin,
                   int64_t row_end) {
  constexpr int64_t kRows = 48;
  alignas(64) T packed[kPanelDepth * kPanelColumns];
  alignas(64) T block[kRows * kPanelColumns];
  for (int64_t j = 0; j < g.n; j += kPanelColumns) {
    const int64_t n = std::min(kPanelColumns, g.n - j),
                  padded = micro::round_up(n, micro::kLanes<T>);
    const bool in_place = n == padded && g.b_col == 1, direct = n == padded;
    for (int64_t i = row_begin; i < row_end; i += kRows) {
      const int64_t m = std::min(kRows, row_end - i), c_row = direct ? g.c_row : padded;
      T* to = direct ? c + i * g.c_row + j : block;
      for (int64_t p = 0; p < g.k; p += kPanelDepth) {
        const int64_t k = std::min(kPanelDepth, g.k - p), panel_row = in_place ? g.b_row : padded;
        const T* panel = b + p * g.b_row + j * g.b_col;
        if (!in_place) {
          // The packed panel survives from one row block to the next when all of k fits.
          if (i == row_begin || g.k > kPanelDepth)
            pack(panel, g.b_row, g.b_col, k, n, padded, packed);
          panel = packed;
        }
        micro::block<T>(m, padded, k, a + i * g.a_row + p * g.a_col, g.a_row, g.a_col, panel,
                        panel_row, to, c_row, p > 0 || (direct && g.accumulate));
      }
      for (int64_t r = 0; !direct && r < m; ++r) {
        T* row = c + (i + r) * g.c_row + j;
        for (int64_t s = 0; s < n; ++s)
          row[s] = g.accumulate ? row[s] + block[r * padded + s] : block[r * padded + s];
      }
    }
  }
}

// A few elements: plain loops beat any packing.
template <class T> void tiny_product(const Gemm& g, const T* a, const T* b, T* c) {
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) {
      T sum = g.accumulate ? c[i * g.c_row + j] : T(0);
      for (int64_t p = 0; p < g.k; ++p)
        sum += a[i * g.a_row + p * g.a_col] * b[p * g.b_row + j * g.b_col];
      c[i * g.c_row + j] = sum;
    }
  }
}

template <class T> void multiply(const Gemm& g) {
  const T* a = static_cast<const T*>(g.a);
  const T* b = static_cast<const T*>(g.b);
  T* c = static_cast<T*>(g.c);
  const int64_t work = g.m * g.n * g.k;
  if (work <= 256) {
    for (int64_t i = 0; i < g.batch; ++i)
      tiny_product(g, a + i * g.a_batch, b + i * g.b_batch, c + i * g.c_batch);
    return;
  }
  constexpr int64_t kTask = 1 << 18;  // multiply-adds per task
  const int64_t rows =
      std::max<int64_t>(48, micro::round_up(kTask / std::max<int64_t>(1, g.n * g.k), 48));
  const int64_t cuts = (g.m + rows - 1) / rows;
  parallel_for(
      g.batch * cuts, std::max<int64_t>(1, kTask / std::max<int64_t>(1, work)),
      [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
          const int64_t i = task / cuts, from = task % cuts * rows, to = std::min(g.m, from + rows);
          panel_product<T>(g, a + i * g.a_batch, b + i * g.b_batch, c + i * g.c_batch, from, to);
        }
      });
}

}  // namespace

void small_gemm(const Gemm& g) {
  if (g.dtype == DType::f64) multiply<double>(g);
  else multiply<float>(g);
}

}  // namespace tessera
