// SPDX-License-Identifier: Apache-2.0
// Attributes as a cache key. Floats compare and hash by their bits, so that 0 and -0 are two keys
// and NaN is one; other types than numbers and lists of numbers compare by their own == and hash
// by their bytes, else by their text.
#pragma once

#include "tessera/core/error.h"

#include <array>
#include <bit>
#include <concepts>
#include <cstdint>
#include <functional>
#include <ranges>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace tessera::detail {

/// Mixes `value` into `seed`; order matters.
constexpr uint64_t hash_combine(uint64_t seed, uint64_t value) {
  uint64_t x = (seed ^ value) * 0x9e3779b97f4a7c15ull;
  return x ^ (x >> 32);
}

template <class T> bool same_attribute(const T& a, const T& b) {
  if constexpr (std::same_as<T, double>) {
    return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
  } else if constexpr (std::same_as<T, float>) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
  } else if constexpr (std::ranges::input_range<const T>) {
    auto i = std::ranges::begin(a);
    auto j = std::ranges::begin(b);
    for (; i != std::ranges::end(a) && j != std::ranges::end(b); ++i, ++j) {
      if (!same_attribute(*i, *j)) return false;
    }
    return i == std::ranges::end(a) && j == std::ranges::end(b);
  } else if constexpr (std::equality_comparable<T>) {
    return a == b;
  } else {
    return concat(a) == concat(b);
  }
}

template <class T> uint64_t hash_attribute(const T& a) {
  if constexpr (std::same_as<T, double>) {
    return std::bit_cast<uint64_t>(a);
  } else if constexpr (std::same_as<T, float>) {
    return std::bit_cast<uint32_t>(a);
  } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
    return static_cast<uint64_t>(a);
  } else if constexpr (std::ranges::input_range<const T>) {
    uint64_t h = 0;
    for (const auto& v : a) h = hash_combine(h + 1, hash_attribute(v));
    return h;
  } else if constexpr (std::has_unique_object_representations_v<T> &&
                       std::is_trivially_copyable_v<T>) {
    uint64_t h = 0;
    for (unsigned char byte : std::bit_cast<std::array<unsigned char, sizeof(T)>>(a))
      h = hash_combine(h + 1, byte);
    return h;
  } else {
    return std::hash<std::string>{}(concat(a));
  }
}

template <class Tuple> bool same_attributes(const Tuple& a, const Tuple& b) {
  return [&]<size_t... I>(std::index_sequence<I...>) {
    return (same_attribute(std::get<I>(a), std::get<I>(b)) && ...);
  }
  (std::make_index_sequence<std::tuple_size_v<Tuple>>());
}

template <class Tuple> uint64_t hash_attributes(const Tuple& a) {
  return std::apply(
      [](const auto&... part) {
        uint64_t h = 0;
        ((h = hash_combine(h + 1, hash_attribute(part))), ...);
        return h;
      },
      a);
}

}  // namespace tessera::detail
