// SPDX-License-Identifier: Apache-2.0
// What tests of collectives share: inputs that every rank can compute for every other, the brute
// force result of a reduction, tensors between guards, comparison of bits.
#pragma once

#include "tessera/dist/world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace tessera::test {

inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Small numbers for tests that choose sizes, members and orders; equal on all ranks that agree on
/// the seed.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(mix(seed)) {}
  int64_t below(int64_t n) {
    state_ = mix(state_);
    return static_cast<int64_t>(state_ % static_cast<uint64_t>(n));
  }
  template <class T> void shuffle(std::vector<T>& v) {
    for (size_t i = v.size(); i > 1; --i)
      std::swap(v[i - 1], v[static_cast<size_t>(below(static_cast<int64_t>(i)))]);
  }

 private:
  uint64_t state_;
};

/// Element i of what `rank` gives in case `salt`: floats of both signs with some NaN, integers of
/// all sizes.
template <class T> T value(uint64_t salt, int rank, int64_t i) {
  const uint64_t bits = mix(salt * 1'000'003 + static_cast<uint64_t>(rank) * 0x10001 +
                            static_cast<uint64_t>(i) * 0x5bd1e995);
  if constexpr (std::is_same_v<T, bool>) {
    return bits & 1;
  } else if constexpr (is_floating(dtype_of<T>)) {
    if (bits % 509 == 0) return static_cast<T>(std::numeric_limits<float>::quiet_NaN());
    return static_cast<T>(
        static_cast<compute_t<T>>(static_cast<int64_t>(bits >> 11) - (1ll << 52)) *
        static_cast<compute_t<T>>(0x1p-51));
  } else {
    return static_cast<T>(bits);
  }
}

/// The balanced tree over values[0..n), split at the largest power of two below n, as plain
/// recursion.
template <class C> C tree(const C* values, ReduceOp op, size_t n) {
  if (n == 1) return *values;
  size_t half = 1;
  while (half * 2 < n) half *= 2;
  const C a = tree(values, op, half), b = tree(values + half, op, n - half);
  if constexpr (std::is_floating_point_v<C>) {
    if (op == ReduceOp::sum || op == ReduceOp::avg) return a + b;
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<C>::quiet_NaN();
  } else if constexpr (!std::is_same_v<C, bool>) {
    if (op == ReduceOp::sum)
      return static_cast<C>(static_cast<std::make_unsigned_t<C>>(a) +
                            static_cast<std::make_unsigned_t<C>>(b));
  }
  return op == ReduceOp::max ? std::max(a, b) : std::min(a, b);
}

/// What element i of the reduction over `ranks` must be. Floats are also held against the sum in
/// f64.
template <class T> T reduced(uint64_t salt, const std::vector<int>& ranks, ReduceOp op, int64_t i) {
  using C = compute_t<T>;
  std::array<C, 64> values{};
  const size_t n = ranks.size();
  for (size_t r = 0; r < n; ++r) values[r] = static_cast<C>(value<T>(salt, ranks[r], i));
  C result = tree(values.data(), op, n);
  if constexpr (is_floating(dtype_of<T>)) {
    if (op == ReduceOp::avg && n > 1) result /= static_cast<C>(n);
    double exact = 0, scale = 0;
    for (size_t r = 0; r < n; ++r)
      exact += values[r], scale += std::abs(static_cast<double>(values[r]));
    if (op == ReduceOp::avg) exact /= static_cast<double>(n);
    if (op == ReduceOp::sum || op == ReduceOp::avg) {
      EXPECT_TRUE(std::isnan(exact)
                      ? std::isnan(result)
                      : std::abs(exact - static_cast<double>(result)) <= 1e-6 * scale);
    }
  }
  return static_cast<T>(result);
}

/// A tensor of `count` elements with poison in it and guards on both sides.
class Guarded {
 public:
  Guarded(int64_t count, DType dtype, Device device = kCpu)
      : whole_(empty({count + 2 * kGuard}, dtype)) {
    std::memset(whole_.raw_data(), kPoison, static_cast<size_t>(whole_.numel() * item_size(dtype)));
    whole_ = to_device(whole_, device);
    tensor_ = alias(whole_, {count}, {1}, kGuard);
  }
  [[nodiscard]] const Tensor& tensor() const { return tensor_; }
  [[nodiscard]] bool guards_stand() const {
    const Tensor whole = to_device(whole_, kCpu);
    const auto* bytes = static_cast<const unsigned char*>(whole.raw_data());
    const int64_t guard = kGuard * item_size(whole_.dtype()),
                  all = whole_.numel() * item_size(whole_.dtype());
    const auto poisoned = [](unsigned char c) { return c == kPoison; };
    return std::all_of(bytes, bytes + guard, poisoned) &&
           std::all_of(bytes + all - guard, bytes + all, poisoned);
  }

 private:
  static constexpr int64_t kGuard = 64;
  static constexpr unsigned char kPoison = 0xa5;
  Tensor whole_, tensor_;
};

template <class T> void fill(const Tensor& x, uint64_t salt, int rank, int64_t first = 0) {
  const Tensor host = x.device().is_cpu() ? x : empty(x.shape(), x.dtype());
  for (int64_t i = 0; i < x.numel(); ++i) host.data<T>()[i] = value<T>(salt, rank, first + i);
  if (!x.device().is_cpu()) copy_bytes(x, host);
}

/// Equal bits, any NaN being as good as another.
template <class T> bool same(T a, T b) {
  if constexpr (is_floating(dtype_of<T>)) {
    const auto x = static_cast<compute_t<T>>(a), y = static_cast<compute_t<T>>(b);
    if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && std::isnan(y);
  }
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

/// As close as sums of `n` values up to 2 are in any order, each step rounded to T.
template <class T> bool near(T a, T b, int n) {
  if (same(a, b)) return true;
  if constexpr (is_floating(dtype_of<T>)) {
    const auto x = static_cast<compute_t<T>>(a), y = static_cast<compute_t<T>>(b);
    const double step = std::is_same_v<T, double>  ? 0x1p-52
                        : std::is_same_v<T, float> ? 0x1p-23
                        : std::is_same_v<T, f16>   ? 0x1p-10
                                                   : 0x1p-7;
    return std::abs(static_cast<double>(x - y)) <= step * 2 * n * n;
  }
  return false;
}

}  // namespace tessera::test
