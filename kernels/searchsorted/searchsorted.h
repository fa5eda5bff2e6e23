// SPDX-License-Identifier: Apache-2.0
// searchsorted: where values would be put into sorted sequences. A cut of the sequence is exact
// too: each piece counts how many of its own come before, and the counts add up.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// sorted (s), values (...) -> (...); or sorted (..., s), values (..., n) -> (..., n), i64.
struct SearchSorted {
  bool right = false;
  static constexpr std::string_view name = "searchsorted";
  static constexpr DTypeSet dtypes = kNumbers | dtypes_of(DType::u8);
  static constexpr NotDifferentiable vjp{"places are whole numbers"};
  auto attributes() const { return std::tie(right); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<SearchSorted>> samples();
};

/// Whether x stands before where v belongs: below it, or with `right` also equal to it. NaN comes
/// after all numbers and is equal to itself.
template <class C> TESSERA_HD bool comes_before(C x, C v, bool right) {
  const bool nan = v != v;
  return right ? (x <= v) | nan : (x < v) | (nan & (x == x));
}

/// How many of `n` rising elements, `step` apart, come before v.
template <class C, class T>
TESSERA_HD int64_t count_before(const T* sorted, int64_t n, int64_t step, C v, bool right) {
  int64_t low = 0;
  while (n > 0) {
    const int64_t half = n / 2;
    const C x = static_cast<C>(sorted[(low + half) * step]);
    const bool before = comes_before(x, v, right);
    low = before ? low + half + 1 : low;
    n = before ? n - half - 1 : half;
  }
  return low;
}

using searchsorted_ops = OpList<SearchSorted>;

}  // namespace op

/// For each of `values` the first place in the rising sequence `sorted` whose element is not below
/// it (with `right`: is above it), its size if there is none -> i64 of values' shape. sorted is
/// (s), or (..., s) with the leading dims of values (..., n). ShapeError for other shapes,
/// DTypeError for unlike dtypes. That `sorted` rises is not checked.
inline Tensor searchsorted(const Tensor& sorted, const Tensor& values, bool right = false) {
  return call(op::SearchSorted{right}, {sorted, values});
}

}  // namespace tessera
