// SPDX-License-Identifier: Apache-2.0
// The products of attention's forward op on the CPU, in two ways. A path holds the keys and values
// of one head, loaded when they are needed, and one block of queries; it gives scores as (keys,
// queries) and sums weighted values.
#pragma once

#include "tessera/kernels/attention/attention_cpu_impl.h"
#include "tessera/kernels/attention/tiles_impl.h"

namespace tessera::op::attention {

// The head that a path works on.
template <class C> struct KeyHead {
  const Operand<C>&k, &v;
  const std::byte *k_at, *v_at;
};

// By vectors, in f32 or f64: operands are padded rows, whatever their dtype.
template <class Number> struct VectorPath {
  using C = Number;
  const Problem& p;
  KeyHead<C> head;
  C *keys, *values, *queries, *q_t, *scores, *acc, *row_max, *row_sum;
  int64_t first = 0, end = 0;

  static int64_t room(const Problem& p, int64_t panel) {
    return panel * (p.padded_d + p.padded_dv) +
           kBlock * (p.padded_d + p.padded_dv + p.d + kBlock + 2);
  }
  VectorPath(const Problem& problem, const KeyHead<C>& h, int64_t panel, C* at)
      : p(problem), head(h) {
    keys = at, values = keys + panel * p.padded_d, queries = values + panel * p.padded_dv;
    acc = queries + kBlock * p.padded_d, q_t = acc + kBlock * p.padded_dv;
    scores = q_t + kBlock * p.d, row_max = scores + kBlock * kBlock, row_sum = row_max + kBlock;
  }
  void need(int64_t key, int64_t n) {
    if (key >= first && key + n <= end) return;
    first = key, end = key + n;
    head.k.load(head.k_at + key * head.k.t, head.k.t, head.k.d, n, p.d, p.padded_d, keys);
    head.v.load(head.v_at + key * head.v.t, head.v.t, head.v.d, n, p.dv, p.padded_dv, values);
  }
  template <int64_t width>
  TESSERA_INLINE void begin(const Operand<C>& q, const std::byte* at, int64_t step, int64_t rows) {
    q.load(at, step, q.d, rows, p.d, p.padded_d, queries);
    transpose_block<width>(queries, rows, p.d, p.padded_d, static_cast<C>(p.scale), q_t);
    for (int64_t i = 0; i < stored<width>(rows) * p.padded_dv; ++i) acc[i] = 0;
  }
  template <int64_t width> TESSERA_INLINE void score(int64_t key, int64_t n) {
    micro::block<C>(n, width, p.d, keys + (key - first) * p.padded_d, p.padded_d, 1, q_t, width,
                    scores, width, false);
  }
  template <int64_t width>
  TESSERA_INLINE void add_values(int64_t key, int64_t n, int64_t rows, const C* rescale) {
    const int64_t m = stored<width>(rows);
    if (rescale) {
      for (int64_t i = 0; i < m; ++i) {
        C* row = acc + i * p.padded_dv;
        for (int64_t j = 0; j < p.padded_dv; ++j) row[j] *= rescale[i];
      }
    }
    micro::block<C>(m, p.padded_dv, n, scores, 1, width, values + (key - first) * p.padded_dv,
                    p.padded_dv, acc, p.padded_dv, true);
  }
  // The sums as padded rows of acc.
  template <int64_t width> TESSERA_INLINE void finish() {}

 private:
  template <int64_t width> static int64_t stored(int64_t rows) {
    return std::min(width, micro::round_up(rows, 4));
  }
};

// By matrix tiles, for bf16: keys are rows of bf16, values columns, so that both stand on the left
// of a product; queries, and weights rounded to bf16, lie in pairs of rows. Sums are (Dv, queries).
struct TilePath {
  using C = float;
  const Problem& p;
  KeyHead<C> head;
  int64_t d32, v16, v32, columns;
  float *scores, *acc, *acc_t, *row_max, *row_sum;
  uint32_t *rows_of_words, *q_words, *weights;
  bf16 *keys, *values_t;  // (keys, d32), (v16, columns)
  int64_t first = 0, end = 0;
  micro::TileScope scope;

  static int64_t room(const Problem& p, int64_t panel) {
    const int64_t d = micro::round_up(p.d, 32), v = micro::round_up(p.dv, 32);
    return (panel + 16) * d / 2 + v * tiles::columns_of(panel) / 2 +
           kBlock * (d + 2 * v + std::max(d, v) + 2 * kBlock + 2);
  }
  TilePath(const Problem& problem, const KeyHead<C>& h, int64_t panel, float* at)
      : p(problem),
        head(h),
        d32(micro::round_up(p.d, 32)),
        v16(micro::round_up(p.dv, 16)),
        v32(micro::round_up(p.dv, 32)),
        columns(tiles::columns_of(panel)) {
    scores = at, acc = scores + kBlock * kBlock, acc_t = acc + kBlock * v32;
    row_max = acc_t + kBlock * v32, row_sum = row_max + kBlock;
    rows_of_words = reinterpret_cast<uint32_t*>(row_sum + kBlock);
    q_words = rows_of_words + kBlock * std::max(d32, v32), weights = q_words + kBlock * d32;
    keys = reinterpret_cast<bf16*>(weights + kBlock * kBlock);
    values_t = keys + (panel + 16) * d32;
  }
  void need(int64_t key, int64_t n) {
    if (key >= first && key + n <= end) return;
    first = key, end = key + n;
    simd([&]() TESSERA_LAMBDA {
      tiles::copy_rows(head.k_at + key * head.k.t, head.k.t, head.k.d, n, p.d, d32, keys);
      tiles::clear(keys + n * d32, 16 * d32);
      tiles::transpose_rows(head.v_at + key * head.v.t, head.v.t, head.v.d, n, p.dv, v32,
                            rows_of_words, values_t, columns);
    });
  }
  template <int64_t width>
  TESSERA_INLINE void begin(const Operand<C>& q, const std::byte* at, int64_t step, int64_t rows) {
    auto* row_bits = reinterpret_cast<bf16*>(rows_of_words);
    tiles::copy_rows(at, step, q.d, rows, p.d, d32, row_bits);
    tiles::clear(row_bits + rows * d32, (width - rows) * d32);
    tiles::transpose<width>(rows_of_words, d32 / 2, q_words);
    for (int64_t i = 0; i < v16 * width; ++i) acc_t[i] = 0;
  }
  template <int64_t width> TESSERA_INLINE void score(int64_t key, int64_t n) {
    micro::tile_block(micro::round_up(n, 16), width, d32, keys + (key - first) * d32, d32, q_words,
                      width, scores, width, false);
    const float scale = static_cast<float>(p.scale);
    for (int64_t i = 0; i < n * width; ++i) scores[i] *= scale;
  }
  template <int64_t width>
  TESSERA_INLINE void add_values(int64_t key, int64_t n, int64_t, const float* rescale) {
    if (rescale) {
      for (int64_t j = 0; j < v16; ++j) {
        float* row = acc_t + j * width;
#pragma GCC ivdep
        for (int64_t i = 0; i < width; ++i) row[i] *= rescale[i];
      }
    }
    const int64_t padded = micro::round_up(n, 32);
    for (int64_t i = n * width; i < padded * width; ++i) scores[i] = 0;
    tiles::pair_rows<width>(scores, padded, weights);
    tiles::add_columns<width>(v16, n, values_t + (key - first), columns, end - key, rows_of_words,
                              weights, acc_t);
  }
  template <int64_t width> TESSERA_INLINE void finish() {
    tiles::transpose_back<width>(acc_t, v16, acc, p.padded_dv);
  }
};

}  // namespace tessera::op::attention
