// SPDX-License-Identifier: Apache-2.0
// Products of a few rows with a matrix, as generation of one token makes them: each element of b is
// brought once and read in place, so the bandwidth of memory is all that counts. f32 goes by plain
// vectors, bf16 by dot products of pairs where the machine has them, so that nothing is unpacked.
// Sums are of f32, in an order that depends on the sizes alone. Compiled with contraction on, like
// micro_gemm.cpp.
#include "tessera/core/parallel.h"
#include "tessera/kernels/matmul/gemm_kinds_impl.h"
#include "tessera/kernels/matmul/parts_impl.h"
#include "tessera/kernels/products/micro_gemm_impl.h"
#include "tessera/kernels/products/micro_tiles_impl.h"
#include "tessera/kernels/shared/rows_impl.h"

#include <algorithm>
#include <type_traits>

#if defined(__x86_64__) && defined(__linux__)
#include "tessera/kernels/matmul/tile_words_impl.h"
#endif

namespace tessera {
namespace {

using micro::Lanes;
constexpr int64_t kWidth = micro::kLanes<float>;  // elements in a vector
constexpr int64_t kTask = 1 << 16;                // elements of b in a task

// Where one product of the batch lies, from `row` of a and c on.
template <class T> struct Operands {
  const T *a, *b;
  int64_t c;  // the offset of c
  Operands(const Gemm& g, int64_t batch, int64_t row = 0)
      : a(static_cast<const T*>(g.a) + batch * g.a_batch + row * g.a_row),
        b(static_cast<const T*>(g.b) + batch * g.b_batch),
        c(batch * g.c_batch + row * g.c_row) {}
};

// Whether columns of b, and rows of a, lie whole; else rows of b must.
bool by_columns(const Gemm& g) {
  return g.b_row == 1 && g.a_col == 1 && (g.b_col != 1 || g.n == 1);
}

// Writes `count` sums at c + at.
template <class T>
TESSERA_INLINE void write(const Gemm& g, int64_t at, const float* sums, int64_t count) {
  const auto put = [&](auto* c) TESSERA_LAMBDA {
    using Out = std::remove_reference_t<decltype(*c)>;
    for (int64_t e = 0; e < count; ++e)
      c[at + e] =
          static_cast<Out>(g.accumulate ? static_cast<float>(c[at + e]) + sums[e] : sums[e]);
  };
  if (g.wide) put(static_cast<float*>(g.c));
  else put(static_cast<T*>(g.c));
}

// `rows` rows of f32 with columns [begin, end) of b, which lie whole, as a's rows do: four columns
// at once.
template <int64_t rows>
TESSERA_INLINE void rows_by_columns(const Gemm& g, int64_t batch, int64_t row, int64_t begin,
                                    int64_t end) {
  const Operands<float> at(g, batch, row);
  const auto dots = [&]<int64_t count>(int64_t j) TESSERA_LAMBDA {
    Lanes<float> lanes[rows][count] = {};
    int64_t p = 0;
    for (; p + kWidth <= g.k; p += kWidth) {
      Lanes<float> x[rows];
      for (int64_t i = 0; i < rows; ++i) x[i] = micro::load(at.a + i * g.a_row + p);
      for (int64_t c = 0; c < count; ++c) {
        const Lanes<float> y = micro::load(at.b + (j + c) * g.b_col + p);
        for (int64_t i = 0; i < rows; ++i) lanes[i][c] += x[i] * y;
      }
    }
    const auto plus = [](auto x, auto y) TESSERA_LAMBDA { return x + y; };
    for (int64_t i = 0; i < rows; ++i) {
      float sums[count];
      for (int64_t c = 0; c < count; ++c) {
        sums[c] = tessera::rows::fold_lanes<float>(lanes[i][c], plus);
        for (int64_t q = p; q < g.k; ++q)
          sums[c] += at.a[i * g.a_row + q] * at.b[(j + c) * g.b_col + q];
      }
      write<float>(g, at.c + i * g.c_row + j, sums, count);
    }
  };
  int64_t j = begin;
  for (; j + 4 <= end; j += 4) dots.template operator()<4>(j);
  for (; j < end; ++j) dots.template operator()<1>(j);
}

// f of the number `rows`, up to `most`, as a constant.
template <int64_t most, class F> void with_rows(int64_t rows, F&& f) {
  if constexpr (most > 1) {
    if (rows < most) return with_rows<most - 1>(rows, f);
  }
  f.template operator()<most>();
}

// f(row, begin, end) for `most` rows and some columns at a time: columns that a core keeps near are
// multiplied with all rows before the next.
template <int64_t most, class F>
void by_blocks(const Gemm& g, int64_t begin, int64_t end, const F& f) {
  constexpr int64_t kNear = 1 << 14;  // bytes of b
  const int64_t few = std::max<int64_t>(4, kNear / (item_size(g.dtype) * g.k) / 4 * 4);
  const int64_t step = g.m > most ? few : end - begin;
  for (int64_t j = begin; j < end; j += step) {
    for (int64_t row = 0; row < g.m; row += most) f(row, j, std::min(end, j + step));
  }
}

void wide_by_columns(const Gemm& g, int64_t batch, int64_t begin, int64_t end) {
  by_blocks<4>(g, begin, end, [&](int64_t row, int64_t from, int64_t to) {
    with_rows<4>(g.m - row, [&]<int64_t rows>() {
      simd([&]() TESSERA_LAMBDA { rows_by_columns<rows>(g, batch, row, from, to); });
    });
  });
}

// A row of f32 where rows of b lie whole: four vectors of columns at once.
TESSERA_INLINE void row_by_rows(const Gemm& g, int64_t batch, int64_t begin, int64_t end) {
  const Operands<float> at(g, batch);
  const auto columns = [&]<int64_t count>(int64_t j) TESSERA_LAMBDA {
    Lanes<float> lanes[count] = {};
    for (int64_t p = 0; p < g.k; ++p) {
      const float x = at.a[p * g.a_col];
      for (int64_t c = 0; c < count; ++c)
        lanes[c] += x * micro::load(at.b + p * g.b_row + j + c * kWidth);
    }
    float sums[count * kWidth];
    for (int64_t c = 0; c < count; ++c) micro::store(sums + c * kWidth, lanes[c]);
    write<float>(g, at.c + j, sums, count * kWidth);
  };
  int64_t j = begin;
  for (; j + 4 * kWidth <= end; j += 4 * kWidth) columns.template operator()<4>(j);
  for (; j + kWidth <= end; j += kWidth) columns.template operator()<1>(j);
  for (; j < end; ++j) {
    float sum = 0;
    for (int64_t p = 0; p < g.k; ++p) sum += at.a[p * g.a_col] * at.b[p * g.b_row + j];
    write<float>(g, at.c + j, &sum, 1);
  }
}

#ifdef TESSERA_TILE_WORDS

// `rows` rows of bf16 with columns [begin, end) of b, which lie whole, as a's rows do.
template <int64_t rows>
TESSERA_TILE_WORDS void narrow_by_columns(const Gemm& g, int64_t batch, int64_t row, int64_t begin,
                                          int64_t end) {
  const Operands<bf16> at(g, batch, row);
  constexpr int64_t kColumns = rows > 4 ? 2 : 4;  // whose sums fit the registers
  for (int64_t j = begin; j < end; j += kColumns) {
    const int64_t count = std::min(kColumns, end - j);
    __m512 lanes[rows][kColumns];
    for (auto& sums : lanes) {
      for (auto& x : sums) x = _mm512_setzero_ps();
    }
    const bf16* columns[kColumns];
    // Columns beyond the last are read as the last.
    for (int64_t c = 0; c < kColumns; ++c)
      columns[c] = at.b + (j + std::min(c, count - 1)) * g.b_col;
    int64_t p = 0;
    for (; p + 32 <= g.k; p += 32) {
      __m512bh x[rows];
      for (int64_t i = 0; i < rows; ++i)
        x[i] = (__m512bh)_mm512_loadu_si512(at.a + i * g.a_row + p);
      for (int64_t c = 0; c < kColumns; ++c) {
        // A column is too short for the machine to guess where the next ones are.
        _mm_prefetch(reinterpret_cast<const char*>(columns[c] + kColumns * g.b_col + p),
                     _MM_HINT_T0);
        const auto y = (__m512bh)_mm512_loadu_si512(columns[c] + p);
        for (int64_t i = 0; i < rows; ++i) lanes[i][c] = _mm512_dpbf16_ps(lanes[i][c], x[i], y);
      }
    }
    for (int64_t c = 0; p < g.k && c < kColumns; ++c) {
      const auto y = (__m512bh)tile_words::read(columns[c] + p, g.k - p);
      for (int64_t i = 0; i < rows; ++i) {
        const auto x = (__m512bh)tile_words::read(at.a + i * g.a_row + p, g.k - p);
        lanes[i][c] = _mm512_dpbf16_ps(lanes[i][c], x, y);
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      float sums[kColumns];
      for (int64_t c = 0; c < kColumns; ++c) sums[c] = _mm512_reduce_add_ps(lanes[i][c]);
      write<bf16>(g, at.c + i * g.c_row + j, sums, count);
    }
  }
}

// The same where rows of b lie whole: pairs of them become words.
template <int64_t rows>
TESSERA_TILE_WORDS void narrow_by_rows(const Gemm& g, int64_t batch, int64_t begin, int64_t end) {
  const Operands<bf16> at(g, batch);
  constexpr int64_t kBlocks = 4 / rows;  // of 32 columns; fewer would read too little of a row
  for (int64_t j = begin; j < end; j += 32 * kBlocks) {
    __m512 lanes[rows][2 * kBlocks];
    for (auto& row : lanes) {
      for (auto& x : row) x = _mm512_setzero_ps();
    }
    for (int64_t p = 0; p < g.k; p += 2) {
      __m512bh x[rows];
      for (int64_t i = 0; i < rows; ++i) {
        const bf16* a = at.a + i * g.a_row + p * g.a_col;
        const uint32_t odd = p + 1 < g.k ? a[g.a_col].bits : 0;
        x[i] = (__m512bh)_mm512_set1_epi32(static_cast<int>(a->bits | odd << 16));
      }
      for (int64_t c = 0; c < kBlocks; ++c) {
        __m512i low, high;
        tile_words::pair(at.b + p * g.b_row + j + 32 * c, g.b_row, 0, g.k - p, end - j - 32 * c,
                         low, high);
        for (int64_t i = 0; i < rows; ++i) {
          lanes[i][2 * c] = _mm512_dpbf16_ps(lanes[i][2 * c], (__m512bh)low, x[i]);
          lanes[i][2 * c + 1] = _mm512_dpbf16_ps(lanes[i][2 * c + 1], (__m512bh)high, x[i]);
        }
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      float sums[32 * kBlocks];
      for (int64_t c = 0; c < 2 * kBlocks; ++c) _mm512_storeu_ps(sums + kWidth * c, lanes[i][c]);
      write<bf16>(g, at.c + i * g.c_row + j, sums, std::min(32 * kBlocks, end - j));
    }
  }
}

void narrow(const Gemm& g, int64_t batch, int64_t begin, int64_t end) {
  if (by_columns(g)) {
    return by_blocks<8>(g, begin, end, [&](int64_t row, int64_t from, int64_t to) {
      with_rows<8>(g.m - row,
                   [&]<int64_t rows>() { narrow_by_columns<rows>(g, batch, row, from, to); });
    });
  }
  with_rows<2>(g.m, [&]<int64_t rows>() { narrow_by_rows<rows>(g, batch, begin, end); });
}

#else

void narrow(const Gemm&, int64_t, int64_t, int64_t) {}  // has_pair_products() is false

#endif

}  // namespace

bool thin_takes(const Gemm& g) {
  constexpr int64_t kLeast = 64 * 64;  // elements of b, below which others start sooner
  const bool columns_lie = by_columns(g);
  if ((!columns_lie && g.b_col != 1) || g.n * g.k < kLeast) return false;
  // From more rows on tiles or vectors are faster, although they pack b.
  const bool tiles = micro::has_tiles();
  const int64_t few = columns_lie ? (tiles ? 4 : 12) : (tiles ? 2 : 1);
  if (g.dtype == DType::bf16) return g.m <= few && micro::has_pair_products();
  // Other products of a few whole rows of b read them in place too.
  return g.dtype == DType::f32 && g.m <= (columns_lie ? 8 : 1);
}

void thin_gemm(std::span<const Gemm> all) {
  constexpr int64_t kColumns = 128;
  struct Job {
    const Gemm* g;
    int64_t columns, cuts, first_task;  // each cut of a product has as many columns
  };
  SmallVector<Job, 1> jobs;
  int64_t tasks = 0, elements = 0;
  for (const Gemm& g : all) {
    const int64_t columns = std::max(kColumns, micro::round_up(kTask / g.k, kColumns));
    jobs.push_back({&g, columns, ceil_div(g.n, columns), tasks});
    tasks += g.batch * jobs.back().cuts;
    elements += g.batch * g.n * g.k;
  }
  parallel_for(tasks, std::max<int64_t>(1, kTask * tasks / elements),
               [&](int64_t from, int64_t to) {
                 each_task(jobs, from, to, [&](const Job& job, int64_t task) {
                   const Gemm& g = *job.g;
                   const int64_t batch = task / job.cuts, begin = task % job.cuts * job.columns,
                                 end = std::min(g.n, begin + job.columns);
                   if (g.dtype == DType::bf16) narrow(g, batch, begin, end);
                   else if (by_columns(g)) wide_by_columns(g, batch, begin, end);
                   else simd([&]() TESSERA_LAMBDA { row_by_rows(g, batch, begin, end); });
                 });
               });
}

}  // namespace tessera
