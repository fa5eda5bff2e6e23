// SPDX-License-Identifier: Apache-2.0
// What attention's CPU kernels share: operands as padded rows of f32 or f64, what each query sees,
// and masks on blocks of scores. Scores are kept transposed, (keys, queries) in blocks, so that the
// running maximum, the exponentials and the sums go over queries in vector lanes, without
// horizontal steps. What depends on the dtype is how rows are loaded and saved; the rest is
// compiled for f32 and f64 alone.
#pragma once

#include "tessera/core/parallel.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/mask/seen_keys_impl.h"
#include "tessera/kernels/products/micro_gemm_impl.h"
#include "tessera/kernels/shared/rows_impl.h"
#include "tessera/kernels/vector_math.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace tessera::op::attention {

inline constexpr int64_t kNarrow = 16;  // queries worked on at a time where few are left
template <class C> inline constexpr C kInf = std::numeric_limits<C>::infinity();

// A (B, H, T, D) operand of any float type, in either order of dims: heads of it go to and from
// padded rows of C.
template <class C> struct Operand {
  std::byte* data;
  int64_t b, h, t, d;  // strides in bytes, but d in elements
  void (*load)(const void* from, int64_t row, int64_t col, int64_t n, int64_t d, int64_t padded,
               C* to);
  void (*save)(const C* from, int64_t padded, int64_t n, int64_t d, void* to, int64_t row,
               int64_t col);

  Operand(const Tensor& x, bool heads_inner)
      : data(static_cast<std::byte*>(x.raw_data())), d(x.strides()[3]) {
    const int64_t item = item_size(x.dtype());
    b = x.strides()[0] * item;
    h = x.strides()[heads_inner ? 2 : 1] * item;
    t = x.strides()[heads_inner ? 1 : 2] * item;
    dispatch<kFloats>(x.dtype(), [&]<class T>() {
      load = &load_rows<T>;
      save = &save_rows<T>;
    });
  }
  [[nodiscard]] std::byte* head(int64_t i, int64_t j) const { return data + i * b + j * h; }

 private:
  template <class T>
  static void load_rows(const void* from, int64_t row, int64_t col, int64_t n, int64_t d,
                        int64_t padded, C* to) {
    simd([&]() TESSERA_LAMBDA {
      for (int64_t i = 0; i < n; ++i) {
        const T* x = reinterpret_cast<const T*>(static_cast<const std::byte*>(from) + i * row);
        rows::load<C>(x, col, d, to + i * padded);
        for (int64_t j = d; j < padded; ++j) to[i * padded + j] = C(0);
      }
    });
  }
  template <class T>
  static void save_rows(const C* from, int64_t padded, int64_t n, int64_t d, void* to, int64_t row,
                        int64_t col) {
    simd([&]() TESSERA_LAMBDA {
      for (int64_t i = 0; i < n; ++i)
        rows::store(from + i * padded, d,
                    reinterpret_cast<T*>(static_cast<std::byte*>(to) + i * row), col);
    });
  }
};

struct Problem {
  int64_t b, h, t, d, h_kv, s, dv, group, padded_d, padded_dv, padded_t;
  double scale, soft_cap;

  template <class Op> Problem(const Op& op, Tensors in, int64_t lanes) {
    const Shape &q = in[0].shape(), &k = in[1].shape();
    const int head = op.heads_inner ? 2 : 1, time = op.heads_inner ? 1 : 2;
    b = q[0], h = q[head], t = q[time], d = q[3], h_kv = k[head], s = k[time];
    dv = in[2].shape()[3];
    group = h_kv ? h / h_kv : 0;
    padded_d = micro::round_up(d, lanes);
    padded_dv = micro::round_up(dv, lanes);
    padded_t = micro::round_up(t, kBlock);
    scale = op.scale != 0 ? op.scale : 1 / std::sqrt(static_cast<double>(std::max<int64_t>(d, 1)));
    soft_cap = op.soft_cap;
  }
  [[nodiscard]] MaskSizes mask_sizes() const { return {b, t, s}; }
};

// What the queries of a block see: any of them, and all of them.
struct BlockRange {
  KeyRange any{std::numeric_limits<int64_t>::max(), -1},
      all{0, std::numeric_limits<int64_t>::max()};
  BlockRange() = default;
  BlockRange(const KeyRange* rows, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      if (!rows[i].empty()) {
        any.first = std::min(any.first, rows[i].first);
        any.last = std::max(any.last, rows[i].last);
      }
      all.first = std::max(all.first, rows[i].first), all.last = std::min(all.last, rows[i].last);
    }
  }
  [[nodiscard]] bool sees_some(int64_t key, int64_t keys) const {
    return any.first < key + keys && any.last >= key;
  }
  [[nodiscard]] bool sees_all(int64_t key, int64_t keys) const {
    return all.first <= key && all.last >= key + keys - 1;
  }
};

// The gradient of bf16 operands by matrix tiles, where the machine has them.
void backward_by_tiles(const AttentionBackward& op, Tensors in, Outputs y);

// (rows, padded) to (d, width): query-minor, scaled; rows beyond the last are zeros.
template <int64_t width, class C>
TESSERA_INLINE void transpose_block(const C* from, int64_t rows, int64_t d, int64_t padded, C scale,
                                    C* to) {
  for (int64_t j = 0; j < d; ++j) {
    for (int64_t i = 0; i < rows; ++i) to[j * width + i] = from[i * padded + j] * scale;
    for (int64_t i = rows; i < width; ++i) to[j * width + i] = C(0);
  }
}

// exp(x) as vmath has it where the result is a normal number, 0 below: weights that small count for
// nothing, and half of the work goes into subnormals and infinity. x is at most 88.
TESSERA_INLINE double weight(double x) { return vmath::exp(x); }
TESSERA_INLINE float weight(float x) {
  constexpr float kLeast = -87.3f, kShift = 12582912.0f + 127.0f;
  const float c = x < kLeast ? kLeast : x;
  // The low bits of `shifted` are the exponent of a float.
  const float shifted = vmath::fma(c, 1.44269504f, kShift), n = shifted - kShift;
  float r = vmath::fma(n, -0.693359375f, c);
  r = vmath::fma(n, 2.12194440e-4f, r);
  float y = vmath::fma(r, 1.9875691500e-4f, 1.3981999507e-3f);
  y = vmath::fma(y, r, 8.3334519073e-3f);
  y = vmath::fma(y, r, 4.1665795894e-2f);
  y = vmath::fma(y, r, 1.6666665459e-1f);
  y = vmath::fma(y, r, 5.0000001201e-1f);
  y = vmath::fma(y, r * r, r) + 1.0f;
  y *= std::bit_cast<float>(std::bit_cast<uint32_t>(shifted) << 23);
  return x < kLeast ? 0.0f : y;
}

// n scores s become cap tanh(s / cap).
template <class C> TESSERA_INLINE void cap_scores(C* scores, int64_t n, C cap) {
  const C inverse = C(1) / cap;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) scores[i] = cap * vmath::tanh(scores[i] * inverse);
}
// The same, and what their gradients are multiplied by: `slopes`.
template <class C> TESSERA_INLINE void cap_scores(C* scores, int64_t n, C cap, C* slopes) {
  const C inverse = C(1) / cap;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const C share = vmath::tanh(scores[i] * inverse);
    scores[i] = cap * share;
    slopes[i] = C(1) - share * share;
  }
}

// Scores of keys that a row does not see become `hidden`; rows beyond the last are anything.
template <int64_t width, class C>
TESSERA_INLINE void mask_block(C* scores, int64_t key, int64_t keys, const KeyRange* ranges,
                               int64_t rows, C hidden = -kInf<C>) {
  alignas(64) C first[width], last[width];
  for (int64_t i = 0; i < width; ++i) {
    const KeyRange& r = ranges[std::min(i, rows - 1)];
    first[i] = static_cast<C>(std::clamp<int64_t>(r.first - key, 0, kBlock));
    last[i] = static_cast<C>(std::clamp<int64_t>(r.last - key, -1, kBlock));
  }
  for (int64_t j = 0; j < keys; ++j) {
    C* s = scores + j * width;
    const C at = static_cast<C>(j);
#pragma GCC ivdep
    for (int64_t i = 0; i < width; ++i) {
      const C upper = at <= last[i] ? s[i] : hidden;
      s[i] = at >= first[i] ? upper : hidden;
    }
  }
}

// The same by words of 64 keys, one for each row.
template <int64_t width, class C>
TESSERA_INLINE void mask_block(C* scores, int64_t keys, const uint64_t* words, int64_t rows) {
  for (int64_t half = 0; half < keys; half += 32) {
    alignas(64) uint32_t seen[width] = {};
    for (int64_t i = 0; i < rows; ++i) seen[i] = static_cast<uint32_t>(words[i] >> half);
    for (int64_t j = half; j < std::min(half + 32, keys); ++j) {
      C* s = scores + j * width;
      const uint32_t bit = uint32_t{1} << (j - half);
#pragma GCC ivdep
      for (int64_t i = 0; i < width; ++i) s[i] = (seen[i] & bit) != 0 ? s[i] : -kInf<C>;
    }
  }
}

// Which scores of a block of queries against a block of keys are hidden: none, those outside of the
// rows' ranges, or those without their bit.
struct Hidden {
  const KeyRange* ranges = nullptr;
  const uint64_t* words = nullptr;

  template <int64_t width, class C>
  TESSERA_INLINE void hide(C* scores, int64_t key, int64_t keys, int64_t rows) const {
    if (ranges) mask_block<width>(scores, key, keys, ranges, rows);
    else if (words) mask_block<width>(scores, keys, words, rows);
  }
};

// The rows of a block of queries: where it starts, and how many there are. Of a packed group they
// are one query.
struct Rows {
  int64_t batch, query, rows;
  bool packed;
};
// Calls f(key, keys, hidden) for each block of keys that `rows` see among [first_key, end_key).
template <class F>
TESSERA_INLINE void for_blocks(const SeenKeys& seen, const Rows& rows, int64_t all_keys,
                               int64_t first_key, int64_t end_key, F&& f) {
  alignas(64) uint64_t words[kBlock];
  for (const SeenBlock& block : seen.blocks(rows.batch, rows.query)) {
    const int64_t key = block.block * kBlock;
    if (key < first_key || key >= end_key) continue;
    Hidden hidden;
    if (block.seen.by != BlockSeen::kEverything) {
      seen.words(rows.batch, rows.query, rows.packed ? 1 : rows.rows, block, words);
      for (int64_t i = 1; rows.packed && i < rows.rows; ++i) words[i] = words[0];
      hidden.words = words;
    }
    f(key, std::min(kBlock, all_keys - key), hidden);
  }
}

}  // namespace tessera::op::attention
