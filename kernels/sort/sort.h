// SPDX-License-Identifier: Apache-2.0
// sort along a dim, stable, with the places that the elements came from. NaN counts as largest, as
// in topk; zeros of both signs are equal.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// x (..., n, ...) -> values, indices (i64) of x's shape. With a bound, whole numbers in [0, bound)
/// are sorted by as many bits as the bound needs. The sorted dim cannot be sharded.
struct Sort {
  int dim = -1;
  bool descending = false;
  int64_t bound = 0;  // none
  static constexpr std::string_view name = "sort";
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr int outputs = 2;
  static constexpr Saves saves = Saves::outputs(1);
  auto attributes() const { return std::tie(dim, descending, bound); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<Sort>> samples();
};

using sort_ops = OpList<Sort>;

}  // namespace op

/// {values, indices} along `dim`: values = gather(x, dim, indices). Equal elements keep their
/// order, also when descending. IndexError for a dim that x lacks, DTypeError for bool and f8.
inline std::array<Tensor, 2> sort(const Tensor& x, int dim = -1, bool descending = false) {
  return call(op::Sort{dim, descending}, {x});
}
/// The indices that would sort x along `dim` (i64). With a `bound` x holds whole numbers in
/// [0, bound), such as ids of experts, which takes a fraction of the time; the order of others is
/// not defined then. DTypeError for a bound of floats, ValueError for a negative one.
inline Tensor argsort(const Tensor& x, int dim = -1, bool descending = false, int64_t bound = 0) {
  return call(op::Sort{dim, descending, bound}, {x})[1];
}

}  // namespace tessera
