// SPDX-License-Identifier: Apache-2.0
// assign_: writes a tensor's values into another of the same shape, converted to its dtype. What
// refreshes a buffer or a copy in lower precision without giving it new bytes.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// to (...), from (...): to = from.
struct Assign {
  static constexpr std::string_view name = "assign_";
  static constexpr DTypeSet dtypes = kAllDTypes;
  static constexpr NotDifferentiable vjp{"it works in place, on buffers and copies of parameters"};
  static constexpr bool writes(size_t i, size_t) { return i == 0; }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs written) const;
  void cuda(Tensors in, Outputs written, Stream stream) const;
  static std::vector<Sample<Assign>> samples();
};

using assign_ops = OpList<Assign>;

}  // namespace op

/// to = from, converted as cast does. ShapeError unless the shapes are equal.
inline void assign_(const Tensor& to, const Tensor& from) { call(op::Assign{}, {to, from}); }

}  // namespace tessera
