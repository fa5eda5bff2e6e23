// SPDX-License-Identifier: Apache-2.0
// Scalar: the number in `x + 1`, made from any arithmetic type. It keeps all bits of an i64 and of
// a double, so that integer tensors compute with it exactly. Two words without padding: as an op's
// attribute it is compared and hashed by its bits.
#pragma once

#include "tessera/core/api.h"
#include "tessera/core/dtype.h"

#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <iosfwd>
#include <type_traits>
#include <utility>

namespace tessera {

class Scalar {
 public:
  constexpr Scalar() = default;
  template <std::integral T>
  constexpr Scalar(T v)
      : bits_(std::bit_cast<uint64_t>(static_cast<double>(v))),
        whole_(std::in_range<int64_t>(static_cast<Wide<T>>(v)) ? static_cast<int64_t>(v) : 0) {}
  template <std::floating_point T>
  constexpr Scalar(T v)
      : bits_(std::bit_cast<uint64_t>(static_cast<double>(v))),
        whole_(v >= T(-0x1p63) && v < T(0x1p63) && static_cast<T>(static_cast<int64_t>(v)) == v
                   ? static_cast<int64_t>(v)
                   : 0) {}

  /// The number as a double, rounded where it is an integer beyond 2^53.
  [[nodiscard]] constexpr double real() const { return std::bit_cast<double>(bits_); }
  /// The number as an integer; 0 unless is_whole().
  [[nodiscard]] constexpr int64_t whole() const { return whole_; }
  /// Whether it is an integer from -2^63 to below 2^63.
  [[nodiscard]] constexpr bool is_whole() const { return whole_ != 0 || real() == 0; }
  /// Whether a tensor of `t` can hold it without losing a fraction or high bits; floats round.
  [[nodiscard]] constexpr bool fits(DType t) const {
    if (is_floating(t)) return true;
    if (!is_whole()) return false;
    switch (t) {
      case DType::i64: return true;
      case DType::i32: return whole_ == static_cast<int32_t>(whole_);
      case DType::u8: return whole_ == static_cast<uint8_t>(whole_);
      default: return whole_ == 0 || whole_ == 1;
    }
  }
  /// The negated number: integers wrap around, 0 becomes -0.
  constexpr Scalar operator-() const {
    Scalar negative(-real());
    negative.whole_ = static_cast<int64_t>(uint64_t{0} - static_cast<uint64_t>(whole_));
    return negative;
  }
  constexpr bool operator==(const Scalar&) const = default;

 private:
  // std::in_range takes no bool and no character types.
  template <class T> using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  uint64_t bits_ = 0;  // of the double
  int64_t whole_ = 0;
};

/// Prints an integer with all its digits, other numbers as doubles.
TESSERA_API std::ostream& operator<<(std::ostream&, const Scalar&);

}  // namespace tessera
