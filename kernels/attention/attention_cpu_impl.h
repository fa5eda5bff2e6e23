// SPDX-License-Identifier: Apache-2.0
// What attention's CPU kernels share: operands as padded rows of f32 or f64, what each query sees,
// and masks on blocks of scores. Scores are kept transposed, (keys, queries) in blocks, so that the
// running maximum, the exponentials and the sums go over queries in vector lanes, without
// horizontal steps. What depends on the dtype is how rows are loaded and saved; the rest is
// compiled for f32 and f64 alone.
#pragma once

#include "tessera/core/parallel.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/attention/mask_impl.h"
#include "tessera/kernels/shared/micro_gemm_impl.h"
#include "tessera/kernels/shared/rows_impl.h"
#include "tessera/kernels/vector_math.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace tessera::op::attention {

inline constexpr int64_t kBlock = 64;   // queries or keys worked on at a time
inline constexpr int64_t kNarrow = 16;  // the same where few queries are left
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
  int64_t b, h, t, d, h_kv, s, group, padded_d, padded_t;
  double scale;

  template <class Op> Problem(const Op& op, Tensors in, int64_t lanes) {
    const Shape &q = in[0].shape(), &k = in[1].shape();
    const int head = op.heads_inner ? 2 : 1, time = op.heads_inner ? 1 : 2;
    b = q[0], h = q[head], t = q[time], d = q[3], h_kv = k[head], s = k[time];
    group = h_kv ? h / h_kv : 0;
    padded_d = micro::round_up(d, lanes);
    padded_t = micro::round_up(t, kBlock);
    scale = op.scale != 0 ? op.scale : 1 / std::sqrt(static_cast<double>(std::max<int64_t>(d, 1)));
  }
};

// What each query sees; one list, or one for each batch where there are documents.
class RowRanges {
 public:
  template <class Op>
  RowRanges(const Op& op, const Problem& p, const Tensor& positions)
      : mask_(op, p.s), queries_(p.t), documents_(positions.defined()) {
    const int64_t batches = documents_ ? p.b : 1;
    ranges_.resize(static_cast<size_t>(batches * p.t));
    if (!documents_) {
      for (int64_t i = 0; i < p.t; ++i) ranges_[static_cast<size_t>(i)] = mask_.range(i, -1, 0);
      return;
    }
    starts_.resize(ranges_.size());
    const int64_t row = positions.strides()[0], step = positions.strides()[1];
    for (int64_t b = 0; b < batches; ++b) {
      const int64_t* at = positions.data<int64_t>() + b * row;
      int64_t end = p.t - 1;
      for (int64_t i = p.t - 1; i >= 0; --i) {
        const auto place = static_cast<size_t>(b * p.t + i);
        const int64_t position = at[i * step];
        ranges_[place] = mask_.range(i, position, end);
        starts_[place] = i + mask_.offset - position;
        if (position == 0) end = i - 1;
      }
    }
  }
  [[nodiscard]] const KeyRange* of(int64_t batch) const {
    return ranges_.data() + (documents_ ? batch * queries_ : 0);
  }
  /// The key at which the query's document starts; 0 where there are no documents.
  [[nodiscard]] int64_t start(int64_t batch, int64_t query) const {
    return documents_ ? starts_[static_cast<size_t>(batch * queries_ + query)] : 0;
  }
  [[nodiscard]] bool documents() const { return documents_; }

 private:
  AttentionMask mask_;
  int64_t queries_;
  bool documents_;
  std::vector<KeyRange> ranges_;
  std::vector<int64_t> starts_;
};

// What the queries of a block see: any of them, and all of them.
struct BlockRange {
  KeyRange any{std::numeric_limits<int64_t>::max(), -1},
      all{0, std::numeric_limits<int64_t>::max()};
  BlockRange() = default;
  BlockRange(const KeyRange* rows, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      any.first = std::min(any.first, rows[i].first), any.last = std::max(any.last, rows[i].last);
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

}  // namespace tessera::op::attention
