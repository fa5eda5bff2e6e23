// SPDX-License-Identifier: Apache-2.0
// How rows of the pointwise family are found and shared out. Dims are merged where all operands
// allow it, so that most calls are one flat row, cut for the threads.
#include "tessera/kernels/pointwise/pointwise_loops_impl.h"
#include "tessera/kernels/shared/loop_nest_impl.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace tessera {
namespace {

// Elements per task, a few microseconds; truths take less.
constexpr int64_t kGrain = 16384;
int64_t grain_of(int64_t widest) { return widest == 1 ? 4 * kGrain : kGrain; }

template <size_t kInputs> void walk(const Tensor& y, Tensors in, RowLoop loop, const void* op) {
  constexpr size_t kN = kInputs + 1;
  std::array<std::byte*, kN> base{static_cast<std::byte*>(y.raw_data())};
  std::array<int64_t, kN> item{item_size(y.dtype())};
  bool flat = true;
  for (size_t i = 0; i < kInputs; ++i) {
    base[1 + i] = static_cast<std::byte*>(in[i].raw_data());
    item[1 + i] = item_size(in[i].dtype());
    flat = flat && in[i].is_contiguous() && in[i].shape() == y.shape();
  }
  const auto row = [&](int64_t n, const std::array<int64_t, kN>& at,
                       const std::array<int64_t, kN>& stride) {
    std::array<const void*, kInputs> from;
    for (size_t i = 0; i < kInputs; ++i) from[i] = base[1 + i] + at[1 + i] * item[1 + i];
    loop(op, n, base[0] + at[0] * item[0], from.data(), stride.data());
  };
  const int64_t total = y.numel(), grain = grain_of(*std::ranges::max_element(item));
  if (flat) {
    std::array<int64_t, kN> ones, at{};
    ones.fill(1);
    if (total <= grain) return row(total, at, ones);
    return parallel_for(total, grain, [&](int64_t begin, int64_t end) {
      std::array<int64_t, kN> here;
      here.fill(begin);
      row(end - begin, here, ones);
    });
  }
  std::array<const Tensor*, kN> operands{&y};
  for (size_t i = 0; i < kInputs; ++i) operands[1 + i] = &in[i];
  const LoopNest<kN> nest(y.shape(), operands);
  const int last = nest.shape.rank() - 1;
  const int64_t n = nest.shape[last], rows = total / n;
  std::array<int64_t, kN> stride;
  for (size_t o = 0; o < kN; ++o) stride[o] = nest.strides[o][last];
  const int64_t cuts = rows >= 8 ? 1 : (n + grain - 1) / grain;  // few long rows: cut them too
  const int64_t piece = (n + cuts - 1) / cuts;
  parallel_for(rows * cuts, std::max<int64_t>(1, grain / piece), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      auto at = nest.row_offsets(task / cuts);
      const int64_t from = task % cuts * piece, count = std::min(piece, n - from);
      if (count <= 0) continue;
      for (size_t o = 0; o < kN; ++o) at[o] += from * stride[o];
      row(count, at, stride);
    }
  });
}

// The bits of a bf16 in the upper half of a word, rounded as bf16's constructor does.
TESSERA_INLINE uint32_t rounded_above(float value) {
  const uint32_t b = std::bit_cast<uint32_t>(value);
  return value != value ? b | 0x400000u : b + 0x7fffu + ((b >> 16) & 1u);
}

}  // namespace

// The values at even places, then those at odd ones.
void detail::widen_pairs(const bf16* x, int64_t n, float* y) {
  const int64_t pairs = n / 2, evens = n - pairs;
  simd([&]() TESSERA_LAMBDA {
    const auto* from = reinterpret_cast<const char*>(x);
    float* __restrict even = y;
    float* __restrict odd = y + evens;
#pragma GCC ivdep
    for (int64_t i = 0; i < pairs; ++i) {
      uint32_t pair;
      std::memcpy(&pair, from + 4 * i, 4);
      even[i] = std::bit_cast<float>(pair << 16);
      odd[i] = std::bit_cast<float>(pair & 0xffff0000u);
    }
  });
  if (evens > pairs) y[pairs] = static_cast<float>(x[n - 1]);
}

void detail::narrow_pairs(const float* x, int64_t n, bf16* y) {
  const int64_t pairs = n / 2, evens = n - pairs;
  simd([&]() TESSERA_LAMBDA {
    auto* __restrict to = reinterpret_cast<char*>(y);
    const float *even = x, *odd = x + evens;
    const int64_t count = pairs;  // bytes that are written could be the captured one
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t pair = rounded_above(even[i]) >> 16 | (rounded_above(odd[i]) & 0xffff0000u);
      std::memcpy(to + 4 * i, &pair, 4);
    }
  });
  if (evens > pairs) y[n - 1] = bf16(x[pairs]);
}

void for_each_row_of(const Tensor& y, Tensors in, RowLoop loop, const void* op) {
  if (y.numel() == 0) return;
  switch (in.size()) {
    case 1: return walk<1>(y, in, loop, op);
    case 2: return walk<2>(y, in, loop, op);
    default: return walk<3>(y, in, loop, op);
  }
}

}  // namespace tessera
