// SPDX-License-Identifier: Apache-2.0
// cat: tensors one after the other along a dim; stack: along a new one; roll: the parts of one
// tensor in another order.
#pragma once

#include "tessera/core/dims.h"
#include "tessera/core/op.h"

#include <optional>

namespace tessera {
namespace op {

/// x_0, x_1, ... (..., n_i, ...) -> (..., n_0 + n_1 + ..., ...): one after the other along `dim`.
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
/// Elements of `dim` moved on by `shift`, the last ones to the front: (a, b, c) by 1 -> (c, a, b),
/// by -1 -> (b, c, a). Without a dim x is rolled as if it were flat. Several dims one after the
/// other, each by its own shift: ShapeError where their numbers differ.
TESSERA_API Tensor roll(const Tensor& x, int64_t shift, std::optional<int> dim = {});
TESSERA_API Tensor roll(const Tensor& x, const std::vector<int64_t>& shifts, Dims dims);

}  // namespace tessera
