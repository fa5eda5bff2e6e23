// SPDX-License-Identifier: Apache-2.0
// Products of f32, or of bf16 in pairs, by vectors of 512 bits. c is cut into one part for each
// thread; a part packs panels of b that stay in the second cache, and rows of a, and multiplies
// blocks of 14 x 32 whose sums stay in registers over kDepth words of k. A word is an f32 element,
// or two of bf16 that follow each other in k, the first one below; bf16 are multiplied exactly and
// summed in f32. The order of each sum depends on k alone: results are equal for all numbers of
// threads.
#include "tessera/core/process.h"
#include "tessera/kernels/matmul/gemm_kinds_impl.h"
#include "tessera/kernels/matmul/parts_impl.h"
#include "tessera/kernels/products/micro_tiles_impl.h"

#if defined(__x86_64__)
#include "tessera/kernels/products/intrinsics_impl.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

// Instructions of pairs are used where they are named, and only bf16 names them.
#define TESSERA_VECTORS \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prfchw")))

namespace tessera {
namespace {

constexpr int64_t kRows = 14, kColumns = 32;  // of a block
constexpr int64_t kDepth = 384;               // words of k at most in a panel of b,
constexpr int64_t kPanel = kDepth * 768;      // which has that many words: 1.1 MiB
constexpr int64_t kMostRows = 36;             // blocks of rows of a part whose sums are kept
constexpr int64_t kRowStep = kDepth + 16;     // packed rows lie in different sets of a cache
constexpr int64_t kColumnStep = 16;           // rows in a packed column: two blocks of 8 as well
constexpr int64_t kPackedBlocks = 8;          // of rows, where a lies by columns
constexpr int64_t kStrip = 16;                // rows packed at once, so that lines come in order
constexpr int64_t kTiny = 16 * 16 * 16;       // multiply-adds of f32 that start sooner elsewhere
constexpr int64_t kNear = 1 << 13;            // elements of b that stay in the first cache: 32 KiB
constexpr int64_t kTask = 1 << 19;            // multiply-adds that are worth a thread

template <class T> inline constexpr int64_t kElements = 4 / sizeof(T);  // of a word

// Words from one packed block to the next: an odd number of pairs of lines, so that blocks that
// are written by turns lie in different sets of the caches.
constexpr int64_t block_step(int64_t k) { return (k | 1) * kColumns; }
constexpr int64_t a_step(int64_t k) { return (ceil_div(k, 2) | 1) * 2 * kColumnStep; }

// Rows of the next block where `left` are left: 16 are two of 8.
constexpr int64_t block_rows(int64_t left) {
  return left > 16 || (left > 8 && left <= kRows) ? kRows : left > 4 ? 8 : 4;
}

// What all parts of a product share.
struct Plan {
  Gemm g;
  Parts parts;
  int64_t first_task = 0;
  int64_t k = 0;                 // in words
  int64_t depth = 0, width = 0;  // of a panel of b
  bool a_by_rows = false, b_by_rows = false, a_in_place = false, b_in_place = false;
  bool keeps_sums = false;  // between panels: c cannot hold them

  explicit Plan(const Gemm& gemm) : g(gemm) {}
  [[nodiscard]] int64_t panel() const { return width / kColumns * block_step(depth); }
  [[nodiscard]] int64_t packed_a() const {
    return a_by_rows ? kRows * kRowStep : kPackedBlocks * a_step(depth);
  }
  [[nodiscard]] int64_t scratch() const {
    return panel() + packed_a() + (keeps_sums ? parts.rows * kRows * width : 0);
  }
};

template <class T> Plan plan_of(const Gemm& g, int64_t share) {
  constexpr bool kPairs = std::is_same_v<T, bf16>;
  Plan p{g};
  p.k = ceil_div(g.k, kElements<T>);
  p.depth = ceil_div(p.k, ceil_div(p.k, kDepth));
  p.a_by_rows = g.a_col == 1 || g.k == 1;
  p.b_by_rows = g.b_col == 1 || g.n == 1;
  p.keeps_sums = kPairs && !g.wide && p.k > p.depth;
  // Rows whose distance is a multiple of 4 KiB share one set of the first cache, and columns far
  // apart lie each in a page of its own. Pairs lie in place only along k, in whole words.
  if (p.a_by_rows) p.a_in_place = g.a_row * static_cast<int64_t>(sizeof(T)) % 4096 != 0;
  else p.a_in_place = !kPairs && g.a_col <= 64;
  if (kPairs) {
    p.a_in_place = p.a_in_place && g.k % 2 == 0 && g.a_row % 2 == 0 && g.a_batch % 2 == 0 &&
                   reinterpret_cast<uintptr_t>(g.a) % 4 == 0;
  }
  // About the cycles of one k: multiplying, packing b, packing a.
  p.parts = cut_in_parts(
      g, ceil_div(g.m, kRows), ceil_div(g.n, kColumns), share, kTask,
      [&](int64_t r, int64_t c) { return 14 * r * c + (p.b_by_rows ? 4 : 10) * c + 2 * r; });
  if (p.keeps_sums) p.parts.rows = std::min(p.parts.rows, kMostRows);
  p.b_in_place =
      !kPairs && p.b_by_rows && (p.parts.rows == 1 || g.m <= 16 || g.k * g.b_row <= kNear);
  const int64_t panels = ceil_div(p.parts.columns, kPanel / p.depth / kColumns);
  p.width = ceil_div(p.parts.columns, panels) * kColumns;
  return p;
}

TESSERA_VECTORS inline __mmask16 first(int64_t n) {
  return n >= 16 ? __mmask16{0xffff} : n <= 0 ? __mmask16{0} : static_cast<__mmask16>((1 << n) - 1);
}

// 16 words along k, of which the first `left` elements count.
TESSERA_VECTORS inline __m512 words_along(const float* from, int64_t left) {
  return _mm512_maskz_loadu_ps(first(left), from);
}
TESSERA_VECTORS inline __m512 words_along(const bf16* from, int64_t left) {
  const __mmask32 mask = left >= 32 ? ~__mmask32{0} : left <= 0 ? 0 : (__mmask32{1} << left) - 1;
  return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, from));
}

// A word of each of 16 rows or columns that lie side by side, of which those in the mask count: `k`
// is the distance of elements along k, of which `left` are left.
TESSERA_VECTORS inline __m512 words_across(const float* from, int64_t, int64_t, __mmask16 mask) {
  return _mm512_maskz_loadu_ps(mask, from);
}
TESSERA_VECTORS inline __m512 words_across(const bf16* from, int64_t k, int64_t left,
                                           __mmask16 mask) {
  const __mmask16 second = left > 1 ? mask : __mmask16{0};
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from)),
                high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(second, from + k));
  return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}

TESSERA_VECTORS inline __m128 four_words(const void* from) {
  return _mm_loadu_ps(static_cast<const float*>(from));
}

// 16 x 16 words to their transpose; `row` is the distance of rows in elements. Four quarters of
// rows four apart make a vector, and each quarter of four such vectors is transposed: half the
// shuffles of what lies in registers already.
template <class T>
TESSERA_VECTORS inline void transpose(const T* from, int64_t row, float* to, int64_t to_row) {
  for (int64_t c = 0; c < 16; c += 4) {
    __m512 x[4];
    for (int64_t i = 0; i < 4; ++i) {
      const T* p = from + i * row + c * kElements<T>;
      x[i] = _mm512_castps128_ps512(four_words(p));
      x[i] = _mm512_mask_broadcast_f32x4(x[i], 0x00f0, four_words(p + 4 * row));
      x[i] = _mm512_mask_broadcast_f32x4(x[i], 0x0f00, four_words(p + 8 * row));
      x[i] = _mm512_mask_broadcast_f32x4(x[i], 0xf000, four_words(p + 12 * row));
    }
    __m512d pairs[4];  // of rows 0-1 and 2-3 of each quarter: columns c, c + 1, then c + 2, c + 3
    for (int64_t i = 0; i < 2; ++i) {
      pairs[i] = _mm512_castps_pd(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]));
      pairs[2 + i] = _mm512_castps_pd(_mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
    }
    for (int64_t i = 0; i < 4; i += 2) {
      _mm512_store_pd(to + (c + i) * to_row, _mm512_unpacklo_pd(pairs[i], pairs[i + 1]));
      _mm512_store_pd(to + (c + i + 1) * to_row, _mm512_unpackhi_pd(pairs[i], pairs[i + 1]));
    }
  }
}

// A block of an operand, in place or packed; `step` is the distance of its rows or columns.
struct Block {
  const float* at;
  int64_t step;
};

// A block of sums: m rows of n elements, added to those of `before` unless it is null. They go to
// `sums` or, where that is null, to the bf16 numbers of `narrow`, added to what lies there if
// `accumulate`.
struct Target {
  const float* before;
  int64_t before_row;
  float* sums;
  bf16* narrow;
  int64_t row, m, n;
  bool accumulate;
};

TESSERA_VECTORS inline void write_narrow(bf16* to, __mmask16 mask, __m512 sum, bool accumulate) {
  if (accumulate) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, to));
    sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)));
  }
  _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(sum));
}

// sum + x y, of f32 or of pairs.
template <class T> TESSERA_VECTORS inline __m512 add_product(__m512 sum, __m512 x, __m512 y) {
  if constexpr (std::is_same_v<T, bf16>) return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y);
  else return _mm512_fmadd_ps(x, y, sum);
}

// a b over k words, where a has `rows` rows, of which the first m count, and b rows of `vectors`
// times 16 columns.
template <class T, int rows, int vectors, bool a_by_rows>
TESSERA_VECTORS void multiply(int64_t k, Block a, Block b, const Target& to) {
  if (to.before) {
    for (int64_t i = 0; i < to.m; ++i) {
      const float* row = to.before + i * to.before_row;
      __builtin_prefetch(row, 1);
      if constexpr (vectors == 2) __builtin_prefetch(row + to.n - 1, 1);
    }
  }
  __m512 sum[rows][vectors];
  for (auto& r : sum) {
    for (auto& v : r) v = _mm512_setzero_ps();
  }
  // Three rows by each pointer, so that all of them stay in registers.
  const float* third[(rows + 2) / 3];
  for (int i = 0; i < (rows + 2) / 3; ++i) third[i] = a.at + (a_by_rows ? 3 * i * a.step : 3 * i);
  const int64_t row = a_by_rows ? a.step : 1, step = a_by_rows ? 1 : a.step;
#pragma GCC unroll 4
  for (int64_t p = 0; p < k; ++p) {
    __m512 line[vectors];
    for (int j = 0; j < vectors; ++j) line[j] = _mm512_loadu_ps(b.at + 16 * j);
    for (int i = 0; i < rows; ++i) {
      const __m512 x = _mm512_set1_ps(third[i / 3][i % 3 * row]);
      for (int j = 0; j < vectors; ++j) sum[i][j] = add_product<T>(sum[i][j], x, line[j]);
    }
    for (auto& t : third) t += step;
    b.at += b.step;
  }
  const __mmask16 mask[2] = {first(to.n), first(to.n - 16)};
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
    if (i >= to.m) return;
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) {
      if (to.before) {
        const float* before = to.before + i * to.before_row + 16 * j;
        sum[i][j] = _mm512_add_ps(sum[i][j], _mm512_maskz_loadu_ps(mask[j], before));
      }
      const int64_t at = i * to.row + 16 * j;
      if (std::is_same_v<T, bf16> && !to.sums)
        write_narrow(to.narrow + at, mask[j], sum[i][j], to.accumulate);
      else _mm512_mask_storeu_ps(to.sums + at, mask[j], sum[i][j]);
    }
  }
}

template <class T, int vectors, bool a_by_rows>
void multiply(int64_t rows, int64_t k, Block a, Block b, const Target& to) {
  if (rows == kRows) multiply<T, kRows, vectors, a_by_rows>(k, a, b, to);
  else if (rows == 8) multiply<T, 8, vectors, a_by_rows>(k, a, b, to);
  else multiply<T, 4, vectors, a_by_rows>(k, a, b, to);
}

// One thread's part of one product: rows [row_, row_end_) and columns [column_, column_end_) of c.
// Places and sizes along k are in words.
template <class T> class Part {
 public:
  Part(const Plan& plan, int64_t task, float* scratch)
      : p_(plan),
        g_(plan.g),
        panel_(scratch),
        packed_a_(scratch + plan.panel()),
        sums_(packed_a_ + plan.packed_a()) {
    const Parts& parts = plan.parts;
    const int64_t batch = task / parts.count(), part = task % parts.count();
    row_ = part / parts.across() * parts.rows * kRows;
    row_end_ = std::min(g_.m, row_ + parts.rows * kRows);
    column_ = part % parts.across() * parts.columns * kColumns;
    column_end_ = std::min(g_.n, column_ + parts.columns * kColumns);
    a_ = static_cast<const T*>(g_.a) + batch * g_.a_batch;
    b_ = static_cast<const T*>(g_.b) + batch * g_.b_batch;
    c_ = batch * g_.c_batch;
  }

  void run() {
    for (int64_t j = column_; j < column_end_; j += p_.width) {
      const int64_t n = std::min(p_.width, column_end_ - j);
      for (int64_t s = 0; s < p_.k; s += p_.depth) {
        const int64_t k = std::min(p_.depth, p_.k - s);
        pack_b(j, s, n, k);
        packed_end_ = row_;
        for (int64_t i = row_, rows; i < row_end_; i += rows) {
          rows = block_rows(row_end_ - i);
          multiply_rows(i, rows, j, s, n, k);
        }
      }
    }
  }

 private:
  void multiply_rows(int64_t i, int64_t rows, int64_t j, int64_t s, int64_t n, int64_t k) {
    const Block a = a_block(i, rows, s, k);
    for (int64_t x = 0; x < n; x += kColumns) {
      const Target to = target(i, rows, j, x, s, n, k);
      const Block b = b_block(j, x, s, n, k);
      if (p_.a_by_rows) {
        if (to.n > 16) multiply<T, 2, true>(rows, k, a, b, to);
        else multiply<T, 1, true>(rows, k, a, b, to);
      } else {
        if (to.n > 16) multiply<T, 2, false>(rows, k, a, b, to);
        else multiply<T, 1, false>(rows, k, a, b, to);
      }
    }
  }

  // Sums of k that goes on are kept in c if it is of f32.
  [[nodiscard]] Target target(int64_t i, int64_t rows, int64_t j, int64_t x, int64_t s, int64_t n,
                              int64_t k) const {
    Target to{};
    to.m = std::min(rows, row_end_ - i);
    to.n = std::min(kColumns, n - x);
    const int64_t at = c_ + i * g_.c_row + j + x;
    to.row = to.before_row = g_.c_row;
    if (std::is_same_v<T, float> || g_.wide) {
      to.sums = static_cast<float*>(g_.c) + at;
      if (s > 0 || g_.accumulate) to.before = to.sums;
      return to;
    }
    float* kept = sums_ + (i - row_) * p_.width + x;
    if (s > 0) to.before = kept, to.before_row = p_.width;
    if (s + k < p_.k) {
      to.sums = kept, to.row = p_.width;
    } else {
      to.narrow = static_cast<bf16*>(g_.c) + at;
      to.accumulate = g_.accumulate;
    }
    return to;
  }

  // Elements of k from word s on.
  [[nodiscard]] int64_t left(int64_t s) const { return g_.k - s * kElements<T>; }

  // Whether the block of columns x of a panel of n is read where it lies.
  [[nodiscard]] bool b_in_place(int64_t n, int64_t x) const {
    return p_.b_in_place && (n - x >= kColumns || n - x == 16);
  }
  // Columns of that block when it is packed.
  static int64_t block_columns(int64_t n, int64_t x) { return n - x > 16 ? 32 : 16; }

  [[nodiscard]] Block b_block(int64_t j, int64_t x, int64_t s, int64_t n, int64_t k) const {
    if constexpr (std::is_same_v<T, float>) {
      if (b_in_place(n, x)) return {b_ + s * g_.b_row + j + x, g_.b_row};
    }
    return {panel_ + x / kColumns * block_step(k), block_columns(n, x)};
  }

  void pack_b(int64_t j, int64_t s, int64_t n, int64_t k) {
    const T* from = b_ + s * kElements<T> * g_.b_row + j * g_.b_col;
    if (p_.b_by_rows) pack_b_by_rows(from, n, k, left(s));
    else pack_b_by_columns(from, n, k, left(s));
  }

  TESSERA_VECTORS void pack_b_by_rows(const T* from, int64_t n, int64_t k, int64_t left) {
    for (int64_t p = 0; p < k; p += kStrip) {
      const int64_t rows = std::min(kStrip, k - p);
      for (int64_t x = 0; x < n; x += kColumns) {
        if (b_in_place(n, x)) continue;
        const int64_t columns = block_columns(n, x);
        const __mmask16 low = first(n - x), high = first(n - x - 16);
        const T* row = from + p * kElements<T> * g_.b_row + x;
        float* to = panel_ + x / kColumns * block_step(k) + p * columns;
        for (int64_t r = 0; r < rows; ++r, row += kElements<T> * g_.b_row, to += columns) {
          const int64_t rest = left - (p + r) * kElements<T>;
          _mm512_store_ps(to, words_across(row, g_.b_row, rest, low));
          if (columns > 16) _mm512_store_ps(to + 16, words_across(row + 16, g_.b_row, rest, high));
        }
      }
    }
  }

  TESSERA_VECTORS void pack_b_by_columns(const T* from, int64_t n, int64_t k, int64_t left) {
    for (int64_t x = 0; x < n; x += 16) {
      const int64_t block = x / kColumns * kColumns, columns = block_columns(n, block);
      for (int64_t p = 0; p < k; p += 16) {
        const T* block_from = from + x * g_.b_col + p * kElements<T>;
        const int64_t rest = std::min(k * kElements<T>, left) - p * kElements<T>;
        float* to = panel_ + block / kColumns * block_step(k) + p * columns + x - block;
        if (n - x >= 16 && rest >= 16 * kElements<T>) {
          transpose(block_from, g_.b_col, to, columns);
          continue;
        }
        alignas(64) float whole[2][256] = {};
        for (int64_t j = 0; j < std::min<int64_t>(16, n - x); ++j) {
          _mm512_store_ps(whole[0] + 16 * j, words_along(block_from + j * g_.b_col, rest));
        }
        transpose(whole[0], 16, whole[1], 16);
        for (int64_t j = 0; j < std::min<int64_t>(16, k - p); ++j)
          _mm512_store_ps(to + j * columns, _mm512_load_ps(whole[1] + 16 * j));
      }
    }
  }

  // `rows` rows from i on, k of them from s on: in place where there are as many, else packed, and
  // zero where they lack.
  TESSERA_VECTORS Block a_block(int64_t i, int64_t rows, int64_t s, int64_t k) {
    const T* from = a_ + i * g_.a_row + s * kElements<T> * g_.a_col;
    if (p_.a_in_place && i + rows <= row_end_) {
      return {static_cast<const float*>(static_cast<const void*>(from)),
              p_.a_by_rows ? g_.a_row / kElements<T> : g_.a_col};
    }
    if (p_.a_by_rows) {
      const int64_t elements = std::min(k * kElements<T>, left(s));
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t count = i + r < row_end_ ? elements : 0;
        for (int64_t p = 0; p < k; p += 16) {
          _mm512_store_ps(
              packed_a_ + r * kRowStep + p,
              words_along(from + r * g_.a_row + p * kElements<T>, count - p * kElements<T>));
        }
      }
      return {packed_a_, kRowStep};
    }
    if (i >= packed_end_) {
      packed_ = i;
      packed_end_ = i + kPackedBlocks * kRows;
      const int64_t blocks = std::min(kPackedBlocks, ceil_div(row_end_ - i, kRows));
      for (int64_t p = 0; p < k; p += kStrip) {
        const int64_t columns = std::min(kStrip, k - p);
        for (int64_t r = 0; r < blocks; ++r) {
          const __mmask16 mask = first(row_end_ - i - r * kRows);
          const T* column = from + p * kElements<T> * g_.a_col + r * kRows;
          float* to = packed_a_ + r * a_step(k) + p * kColumnStep;
          for (int64_t q = 0; q < columns; ++q, to += kColumnStep) {
            _mm512_store_ps(to, words_across(column, g_.a_col, left(s + p + q), mask));
            column += kElements<T> * g_.a_col;
          }
        }
      }
    }
    const int64_t ahead = i - packed_;
    return {packed_a_ + ahead / kRows * a_step(k) + ahead % kRows, kColumnStep};
  }

  const Plan& p_;
  const Gemm& g_;
  float *panel_, *packed_a_, *sums_;
  const T *a_ = nullptr, *b_ = nullptr;
  int64_t c_ = 0;  // the offset of the product in c
  int64_t row_ = 0, row_end_ = 0, column_ = 0, column_end_ = 0;
  int64_t packed_ = 0, packed_end_ = 0;  // rows of a that lies by columns
};

}  // namespace

bool vector_takes(const Gemm& g) {
  if (g.dtype == DType::bf16) return micro::has_pair_products() && !micro::has_tiles();
  return g.dtype == DType::f32 && Process::get().isa() == Isa::avx512 && g.m * g.n * g.k > kTiny;
}

void vector_gemm(std::span<const Gemm> all) {
  const auto run = [&]<class T>() {
    SmallVector<Plan, 1> plans;
    const int64_t share = part_share(all);
    for (const Gemm& g : all) plans.push_back(plan_of<T>(g, share));
    share_parts(plans, kTask, [&](int64_t begin, int64_t end, int32_t* own) {
      each_task(plans, begin, end, [&](const Plan& p, int64_t task) {
        Part<T>(p, task, reinterpret_cast<float*>(own)).run();
      });
    });
  };
  if (all[0].dtype == DType::bf16) run.template operator()<bf16>();
  else run.template operator()<float>();
}

}  // namespace tessera

#else

namespace tessera {

bool vector_takes(const Gemm&) { return false; }
void vector_gemm(std::span<const Gemm>) {}

}  // namespace tessera

#endif
