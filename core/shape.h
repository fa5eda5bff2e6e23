// SPDX-License-Identifier: Apache-2.0
// Shapes and strides: up to eight sizes held inline, so that making one costs no allocation.
// Sizes are checked once, when a tensor is made: none negative, the product within int64.
#pragma once

#include "tessera/core/error.h"

#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string_view>

namespace tessera {

inline constexpr int kMaxRank = 8;

/// Sizes (or strides, in elements) of a tensor's dims, outermost first.
class TESSERA_API Shape {
 public:
  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<int64_t> sizes)
      : Shape(std::span<const int64_t>(sizes.begin(), sizes.size())) {}
  constexpr explicit Shape(std::span<const int64_t> sizes) {
    for (int64_t s : sizes) push_back(s);
  }
  static constexpr Shape filled(int rank, int64_t value) {
    Shape s;
    for (int i = 0; i < rank; ++i) s.push_back(value);
    return s;
  }

  [[nodiscard]] constexpr int rank() const { return rank_; }
  [[nodiscard]] constexpr int64_t& operator[](int i) { return sizes_[static_cast<size_t>(i)]; }
  [[nodiscard]] constexpr int64_t operator[](int i) const { return sizes_[static_cast<size_t>(i)]; }
  [[nodiscard]] constexpr int64_t back() const { return sizes_[static_cast<size_t>(rank_ - 1)]; }
  [[nodiscard]] constexpr const int64_t* begin() const { return sizes_.data(); }
  [[nodiscard]] constexpr const int64_t* end() const { return sizes_.data() + rank_; }
  constexpr operator std::span<const int64_t>() const {
    return {sizes_.data(), static_cast<size_t>(rank_)};
  }
  constexpr void push_back(int64_t size) {
    if (rank_ == kMaxRank)
      fail<ShapeError>("shape", "more than ", kMaxRank, " dims; merge some with reshape");
    sizes_[static_cast<size_t>(rank_++)] = size;
  }
  constexpr bool operator==(const Shape& o) const {
    if (rank_ != o.rank_) return false;
    for (int i = 0; i < rank_; ++i) {
      if ((*this)[i] != o[i]) return false;
    }
    return true;
  }
  /// Product of the sizes; unchecked, for shapes of existing tensors.
  [[nodiscard]] constexpr int64_t numel() const {
    int64_t n = 1;
    for (int64_t s : *this) n *= s;
    return n;
  }
  [[nodiscard]] constexpr Shape without(int dim) const {
    Shape s;
    for (int i = 0; i < rank_; ++i) {
      if (i != dim) s.push_back((*this)[i]);
    }
    return s;
  }

 private:
  std::array<int64_t, kMaxRank> sizes_{};
  int32_t rank_ = 0;
};

TESSERA_API std::ostream& operator<<(std::ostream&, const Shape&);

/// Row-major strides of `shape`.
[[nodiscard]] constexpr Shape contiguous_strides(const Shape& shape) {
  Shape strides = shape;
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i] > 0 ? shape[i] : 1;
  }
  return strides;
}

/// True if elements of (shape, strides) lie row-major without gaps.
[[nodiscard]] constexpr bool is_contiguous(const Shape& shape, const Shape& strides) {
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (shape[i] != 1 && strides[i] != step) return shape.numel() == 0;
    step *= shape[i];
  }
  return true;
}

/// Sizes non-negative and product times `item_size` within int64, else ShapeError; returns the
/// product of sizes.
TESSERA_API int64_t checked_numel(const Shape& shape, int64_t item_size, std::string_view where);

/// `dim` in [-rank, rank) as a non-negative dim, else IndexError naming `op`. Rank 0 counts as rank
/// 1 for dim -1 and 0.
TESSERA_API int normalize_dim(int dim, int rank, std::string_view op);

/// Shape of a and b broadcast together (right-aligned, sizes equal or 1), else ShapeError naming
/// `op`.
TESSERA_API Shape broadcast_shapes(const Shape& a, const Shape& b, std::string_view op);

}  // namespace tessera
