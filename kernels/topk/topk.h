// SPDX-License-Identifier: Apache-2.0
// topk: the k largest (or smallest) elements along a dim, in order, with their indices. Of equal
// elements the first comes first; NaN counts as largest.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// x (..., n, ...) -> values and indices (..., k, ...): the k largest, or smallest, in order.
struct TopK {
  int64_t k = 1;
  int dim = -1;
  bool largest = true;
  static constexpr std::string_view name = "topk";
  static constexpr bool expensive = true;
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr int outputs = 2;  // values, indices (i64)
  static constexpr Saves saves = Saves::outputs(1);
  auto attributes() const { return std::tie(k, dim, largest); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<TopK>> samples();
};

using topk_ops = OpList<TopK>;

}  // namespace op

/// {values, indices (i64)} of x (..., n, ...), both (..., k, ...), largest first, or smallest first
/// where `largest` is false. ShapeError if k is negative or larger than the dim.
inline std::array<Tensor, 2> topk(const Tensor& x, int64_t k, int dim = -1, bool largest = true) {
  return call(op::TopK{k, dim, largest}, {x});
}

}  // namespace tessera
