// SPDX-License-Identifier: Apache-2.0
// cat: tensors one after the other along a dim; stack: along a new one.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

struct Cat {
  int dim = 0;
  static constexpr std::string_view name = "cat";
  static constexpr DTypeSet dtypes = kAllDTypes;
  static constexpr Saves saves = Saves::none();
  auto attributes() const { return std::tie(dim); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<Cat>> samples();
};

using cat_ops = OpList<Cat>;

}  // namespace op

/// At least one tensor; shapes equal but for `dim`, dtypes equal.
inline Tensor cat(const std::vector<Tensor>& tensors, int dim = 0) {
  return call(op::Cat{dim}, Tensors(tensors));
}
/// n tensors of one shape (A, B) and dtype along a new dim of the result, at 1 -> (A, n, B).
/// UsageError for an empty list, ShapeError that names the tensor of another shape.
TESSERA_API Tensor stack(const std::vector<Tensor>& tensors, int dim = 0);

}  // namespace tessera
