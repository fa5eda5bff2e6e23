// SPDX-License-Identifier: Apache-2.0
// Element types, sets of them, and the switch from a run-time DType to a C++ type.
#pragma once

#include "tessera/core/error.h"
#include "tessera/core/float_types.h"

#include <array>
#include <cstdint>
#include <iosfwd>
#include <string_view>

namespace tessera {

enum class DType : uint8_t { f64, f32, bf16, f16, f8_e4m3, f8_e5m2, i64, i32, u8, bool_ };
inline constexpr int kDTypes = 10;

[[nodiscard]] constexpr int64_t item_size(DType t) {
  constexpr std::array<int8_t, kDTypes> kSizes{8, 4, 2, 2, 1, 1, 8, 4, 1, 1};
  return kSizes[static_cast<size_t>(t)];
}
[[nodiscard]] constexpr std::string_view name(DType t) {
  constexpr std::array<std::string_view, kDTypes> kNames{"f64",     "f32", "bf16", "f16", "f8_e4m3",
                                                         "f8_e5m2", "i64", "i32",  "u8",  "bool"};
  return kNames[static_cast<size_t>(t)];
}
[[nodiscard]] constexpr bool is_floating(DType t) { return t <= DType::f8_e5m2; }
TESSERA_API std::ostream& operator<<(std::ostream&, DType);

/// A set of dtypes; what a room supports.
struct DTypeSet {
  uint16_t bits = 0;
  [[nodiscard]] constexpr bool has(DType t) const { return bits >> static_cast<int>(t) & 1; }
  constexpr DTypeSet operator|(DTypeSet o) const { return {static_cast<uint16_t>(bits | o.bits)}; }
  constexpr bool operator==(const DTypeSet&) const = default;
};
template <class... T> constexpr DTypeSet dtypes_of(T... t) {
  return {static_cast<uint16_t>((0 | ... | (1 << static_cast<int>(t))))};
}
inline constexpr DTypeSet kFloats = dtypes_of(DType::f64, DType::f32, DType::bf16, DType::f16);
inline constexpr DTypeSet kIntegers = dtypes_of(DType::i64, DType::i32);
inline constexpr DTypeSet kNumbers = kFloats | kIntegers;
inline constexpr DTypeSet kAllDTypes{(1 << kDTypes) - 1};
TESSERA_API std::ostream& operator<<(std::ostream&, DTypeSet);

template <class T> inline constexpr bool kIsDType = false;
template <class T>
inline constexpr DType dtype_of = [] {
  static_assert(kIsDType<T>, "no DType stands for this C++ type");
  return DType::f32;
}();
#define TESSERA_DTYPE(T, D)                             \
  template <> inline constexpr bool kIsDType<T> = true; \
  template <> inline constexpr DType dtype_of<T> = DType::D
TESSERA_DTYPE(double, f64);
TESSERA_DTYPE(float, f32);
TESSERA_DTYPE(bf16, bf16);
TESSERA_DTYPE(f16, f16);
TESSERA_DTYPE(f8_e4m3, f8_e4m3);
TESSERA_DTYPE(f8_e5m2, f8_e5m2);
TESSERA_DTYPE(int64_t, i64);
TESSERA_DTYPE(int32_t, i32);
TESSERA_DTYPE(uint8_t, u8);
TESSERA_DTYPE(bool, bool_);
#undef TESSERA_DTYPE

/// The type that arithmetic on T uses: f32 for narrower floats, else T itself.
template <class T> struct Compute { using type = T; };
template <class T>
requires(kIsDType<T>&& is_floating(dtype_of<T>) && sizeof(T) < 4) struct Compute<T> {
  using type = float;
};
template <class T> using compute_t = typename Compute<T>::type;
/// The same for a dtype; ops store statistics and tables of `t` in it.
constexpr DType compute_dtype(DType t) {
  return is_floating(t) && item_size(t) < 4 ? DType::f32 : t;
}

/// Calls `f.template operator()<T>()` for the C++ type of `t`, which must be in `kSet` (a room
/// checks that in meta).
template <DTypeSet kSet, class F> decltype(auto) dispatch(DType t, F&& f) {
#define TESSERA_CASE(T)                                      \
  if constexpr (kSet.has(dtype_of<T>)) {                     \
    if (t == dtype_of<T>) return f.template operator()<T>(); \
  }
  TESSERA_CASE(float)
  TESSERA_CASE(bf16)
  TESSERA_CASE(double)
  TESSERA_CASE(f16)
  TESSERA_CASE(f8_e4m3)
  TESSERA_CASE(f8_e5m2)
  TESSERA_CASE(int64_t)
  TESSERA_CASE(int32_t)
  TESSERA_CASE(uint8_t)
  TESSERA_CASE(bool)
#undef TESSERA_CASE
  fail<DTypeError>("dispatch", "no kernel for dtype ", name(t));
}

}  // namespace tessera
