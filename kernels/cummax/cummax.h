// SPDX-License-Identifier: Apache-2.0
// cummax and cummin: the largest (smallest) element up to each along a dim, and its index.
// As in PyTorch the last of equals counts, and NaN stays from where it first appears.
#pragma once

#include "tessera/core/op.h"

#include <array>

namespace tessera {
namespace op {

/// x (..., n, ...) -> values like x, indices i64 of the same shape. The dim cannot be sharded.
template <class Op> struct Cumextreme {
  int dim = 0;
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr int outputs = 2;
  static constexpr Saves saves = Saves::outputs(1);
  auto attributes() const { return std::tie(dim); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<Op>> samples();
};
struct Cummax : Cumextreme<Cummax> {
  static constexpr std::string_view name = "cummax";
  static constexpr bool kLargest = true;
};
struct Cummin : Cumextreme<Cummin> {
  static constexpr std::string_view name = "cummin";
  static constexpr bool kLargest = false;
};

using cummax_ops = OpList<Cummax, Cummin>;

}  // namespace op

/// {values, indices} along `dim`. IndexError for a dim that x lacks, DTypeError for bool.
inline std::array<Tensor, 2> cummax(const Tensor& x, int dim) {
  return call(op::Cummax{{dim}}, {x});
}
inline std::array<Tensor, 2> cummin(const Tensor& x, int dim) {
  return call(op::Cummin{{dim}}, {x});
}

}  // namespace tessera
