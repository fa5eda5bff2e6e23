// SPDX-License-Identifier: Apache-2.0
// cumsum: sums of all elements up to each, along a dim; reversed: from each to the end, which is
// the gradient. Floats are summed in f64 and rounded once, integers wrap around.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// x (..., n, ...) -> the same shape and dtype. The summed dim cannot be sharded.
struct Cumsum {
  int dim = 0;
  bool reverse = false;
  static constexpr std::string_view name = "cumsum";
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::none();
  auto attributes() const { return std::tie(dim, reverse); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<Cumsum>> samples();
};

using cumsum_ops = OpList<Cumsum>;

}  // namespace op

/// y[i] = x[0] + ... + x[i] along `dim`; with `reverse` y[i] = x[i] + ... + x[n - 1]. The dtype is
/// x's (cast narrow integers first). IndexError for a dim that x lacks, DTypeError for bool.
inline Tensor cumsum(const Tensor& x, int dim, bool reverse = false) {
  return call(op::Cumsum{dim, reverse}, {x});
}

}  // namespace tessera
