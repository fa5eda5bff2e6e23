// SPDX-License-Identifier: Apache-2.0
// Dims: the dims that a function works over, as it is given them: `sum(x, 1)`, `sum(x, {0, -1})`,
// `sum(x, dims)` of a vector or span. A view for arguments: it must not outlive the call.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <vector>

namespace tessera {

class Dims {
 public:
  constexpr Dims() = default;
  constexpr Dims(int dim) : one_(dim), size_(1) {}
  constexpr Dims(std::span<const int> dims) : many_(dims.data()), size_(dims.size()) {}
  constexpr Dims(std::initializer_list<int> dims)
      : Dims(std::span<const int>(dims.begin(), dims.size())) {}
  Dims(const std::vector<int>& dims) : Dims(std::span<const int>(dims)) {}

  [[nodiscard]] constexpr const int* begin() const { return many_ ? many_ : &one_; }
  [[nodiscard]] constexpr const int* end() const { return begin() + size_; }
  [[nodiscard]] constexpr size_t size() const { return size_; }

 private:
  const int* many_ = nullptr;
  int one_ = 0;
  size_t size_ = 0;
};

}  // namespace tessera
