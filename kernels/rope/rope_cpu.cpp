// SPDX-License-Identifier: Apache-2.0
// rope on the CPU: a step is one token, whose heads share a row of each table. The row is laid out
// once as the vector loops want it, and every head goes through registers, whatever its dtype.
#include "tessera/kernels/rope/rope.h"
#include "tessera/kernels/shared/rows_impl.h"

#include <cstring>
#include <utility>

namespace tessera::op {
namespace {

using micro::kLanes, micro::Lanes;

// A vector of C from T and back. What does not vectorise by itself is spelled out: bf16 is the top
// half of an f32, rounded to nearest even.
using HalfBits __attribute__((vector_size(32))) = uint16_t;
using WordBits __attribute__((vector_size(64))) = uint32_t;

template <class C, class T> TESSERA_INLINE Lanes<C> load_as(const T* p) {
  if constexpr (std::is_same_v<T, C>) {
    return micro::load(p);
  } else if constexpr (std::is_same_v<T, bf16>) {
    HalfBits half;
    std::memcpy(&half, p, sizeof(half));
    const WordBits word = __builtin_convertvector(half, WordBits) << 16;
    return reinterpret_cast<Lanes<C>>(word);
  } else {
    C values[kLanes<C>];
    for (int64_t i = 0; i < kLanes<C>; ++i) values[i] = static_cast<C>(p[i]);
    return micro::load(values);
  }
}
template <class C, class T> TESSERA_INLINE void store_as(T* p, const Lanes<C>& v) {
  if constexpr (std::is_same_v<T, C>) {
    micro::store(p, v);
  } else if constexpr (std::is_same_v<T, bf16>) {
    const WordBits b = reinterpret_cast<WordBits>(v);
    const WordBits rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16, quiet = (b >> 16) | 0x40u;
    const WordBits word = (b & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
    const HalfBits half = __builtin_convertvector(word, HalfBits);
    std::memcpy(static_cast<void*>(p), &half, sizeof(half));
  } else {
    C values[kLanes<C>];
    micro::store(values, v);
    for (int64_t i = 0; i < kLanes<C>; ++i) p[i] = static_cast<T>(values[i]);
  }
}

// Each value's other of its pair: neighbours, or (halves) the other half of the vector.
template <bool halves, class C> TESSERA_INLINE Lanes<C> swap_pairs(const Lanes<C>& x) {
  constexpr size_t kAway = halves ? kLanes<C> / 2 : 1;
  return [&]<size_t... I>(std::index_sequence<I...>) TESSERA_LAMBDA {
    return __builtin_shufflevector(x, x, (I ^ kAway)...);
  }
  (std::make_index_sequence<kLanes<C>>());
}

// One head whose pairs lie within vectors: adjacent ones, or halves of a head of one vector. c
// holds the cos of each value, s its sin: -sin for the first of a pair.
template <bool halves, class C, class T>
TESSERA_INLINE void turn_within(const T* x, int64_t step, const C* c, const C* s, int64_t n, T* y) {
  int64_t i = 0;
  for (; step == 1 && i + kLanes<C> <= n; i += kLanes<C>) {
    const Lanes<C> v = load_as<C>(x + i);
    store_as<C>(y + i, v * micro::load(c + i) + swap_pairs<halves, C>(v) * micro::load(s + i));
  }
  for (; i < n; i += 2) {
    const C a = static_cast<C>(x[i * step]), b = static_cast<C>(x[(i + 1) * step]);
    y[i] = static_cast<T>(a * c[i] + b * s[i]);
    y[i + 1] = static_cast<T>(b * c[i] + a * s[i + 1]);
  }
}

// One head of pairs (x[i], x[i + half]).
template <class C, class T>
TESSERA_INLINE void turn_halves(const T* x, int64_t step, const C* c, const C* s, int64_t half,
                                T* y) {
  int64_t i = 0;
  for (; step == 1 && i + kLanes<C> <= half; i += kLanes<C>) {
    const Lanes<C> a = load_as<C>(x + i), b = load_as<C>(x + half + i), cos = micro::load(c + i),
                   sin = micro::load(s + i);
    store_as<C>(y + i, a * cos - b * sin);
    store_as<C>(y + half + i, b * cos + a * sin);
  }
  for (; i < half; ++i) {
    const C a = static_cast<C>(x[i * step]), b = static_cast<C>(x[(half + i) * step]);
    y[i] = static_cast<T>(a * c[i] - b * s[i]);
    y[half + i] = static_cast<T>(b * c[i] + a * s[i]);
  }
}

// The row of each table as the vector loops want it: c the cos of each value, s its sin, -sin for
// the first of a pair. Vectors of dense rows are stored whole, since reading one that was stored in
// parts waits for all of them.
template <bool halves, bool kDense, class C>
TESSERA_INLINE void lay_out(const C* cos, int64_t cos_step, const C* sin, int64_t sin_step, C sign,
                            int64_t half, C* __restrict c, C* __restrict s) {
#pragma GCC ivdep
  for (int64_t i = 0; i < half; ++i) {
    const int64_t first = halves ? i : 2 * i, second = halves ? half + i : 2 * i + 1;
    const C turn = sign * sin[kDense ? i : i * sin_step];
    c[first] = c[second] = cos[kDense ? i : i * cos_step];
    s[first] = -turn;
    s[second] = turn;
  }
}

// x (..., t, h, d) without its heads: a row for each token.
Tensor without_heads(const Tensor& x) {
  const int h = x.rank() - 2;
  return alias(x, x.shape().without(h), x.strides().without(h), x.offset());
}
// Positions with a last dim of 1, a row for each token.
Tensor as_rows(const Tensor& positions) {
  Shape shape = positions.shape(), strides = positions.strides();
  shape.push_back(1);
  strides.push_back(1);
  return alias(positions, shape, strides, positions.offset());
}

// Throws before anything is written.
void check_positions(std::string_view name, const Tensor& positions, const Rows& at, int64_t rows) {
  const int64_t* data = positions.data<int64_t>();
  for (int64_t i = 0; i < at.count; ++i) {
    const int64_t position = data[at.offset(i)];
    if (position >= 0 && position < rows) continue;
    fail<IndexError>(name, "position ", position, " of token ", i, " (row-major) of ",
                     positions.meta(), " is beyond the tables: expected 0 to ", rows - 1);
  }
}

}  // namespace

void Rope::cpu(Tensors in, Outputs y) const {
  const Tensor& x = in[0];
  if (x.numel() == 0) return;
  const bool by_position = in.size() > 3 && in[3].defined();
  const Tensor positions = by_position ? as_rows(in[3]) : Tensor();
  const Rows places(by_position ? positions : x, by_position ? positions.rank() - 1 : 0);
  if (by_position) check_positions(name, positions, places, in[1].shape()[0]);
  const int64_t* position = by_position ? positions.data<int64_t>() : nullptr;
  dispatch<kFloats>(x.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const int r = x.rank();
    const Tensor from_tokens = without_heads(x), to_tokens = without_heads(y[0]);
    const Rows from(from_tokens, r - 2), to(to_tokens, r - 2);
    const int64_t heads = x.shape()[r - 2], times = x.shape()[r - 3], d = from.n;
    const int64_t turned = rotary == 0 ? d : rotary, half = turned / 2;
    const int64_t from_head = x.strides()[r - 2], to_head = y[0].strides()[r - 2];
    const C *cos = in[1].data<C>(), *sin = in[2].data<C>();
    const int64_t cos_t = in[1].strides()[0], cos_d = in[1].strides()[1],
                  sin_t = in[2].strides()[0], sin_d = in[2].strides()[1];
    const T* src = x.data<T>();
    T* dst = y[0].data<T>();
    const bool one_vector = halves && turned == kLanes<C> && from.stride == 1;
    const C sign = inverse ? C(-1) : C(1);
    const bool dense = cos_d == 1 && sin_d == 1;
    for_each_row<C>(from.count, heads * d, turned, 2, [&](int64_t token, C* c, int64_t padded) {
      simd([&]() TESSERA_LAMBDA {
        C* s = c + padded;
        const int64_t t = position ? position[places.offset(token)] : token % times;
        const C *cos_row = cos + t * cos_t, *sin_row = sin + t * sin_t;
        const auto spread = [&]<bool kHalves, bool kDense>() TESSERA_LAMBDA {
          lay_out<kHalves, kDense>(cos_row, cos_d, sin_row, sin_d, sign, half, c, s);
        };
        if (dense && halves) spread.template operator()<true, true>();
        else if (dense) spread.template operator()<false, true>();
        else if (halves) spread.template operator()<true, false>();
        else spread.template operator()<false, false>();
        const T* p = src + from.offset(token);
        T* q = dst + to.offset(token);
        for (int64_t h = 0; h < heads; ++h, p += from_head, q += to_head) {
          if (!halves) turn_within<false, C>(p, from.stride, c, s, turned, q);
          else if (one_vector) turn_within<true, C>(p, 1, c, s, turned, q);
          else turn_halves<C>(p, from.stride, c, s + half, half, q);
          for (int64_t i = turned; i < d; ++i) q[i] = p[i * from.stride];
        }
      });
    });
  });
}

}  // namespace tessera::op
