// SPDX-License-Identifier: Apache-2.0
// one_hot: class numbers to rows of zeros with a one. The number of classes is given, never read
// from the values, so that shapes do not depend on data.
#pragma once

#include "tessera/core/op.h"
#include "tessera/kernels/pointwise/index_dtype.h"

namespace tessera {
namespace op {

/// ids (...) i64 in [0, classes) -> (..., classes) of `dtype`.
struct OneHot {
  int64_t classes = 1;
  DType dtype = DType::i64;
  static constexpr std::string_view name = "one_hot";
  static constexpr DTypeSet dtypes = kNumbers | dtypes_of(DType::bool_);
  static constexpr NotDifferentiable vjp{"the input is a class number"};
  auto attributes() const { return std::tie(classes, dtype); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<OneHot>> samples();
};

using one_hot_ops = OpList<OneHot>;

}  // namespace op

/// ids (...), i64 or i32 -> (..., classes). IndexError for an id outside [0, classes) (on CUDA its
/// row is zero: a kernel cannot throw), ShapeError for negative classes, DTypeError for other ids.
inline Tensor one_hot(const Tensor& ids, int64_t classes, DType dtype = DType::i64) {
  return call(op::OneHot{classes, dtype}, {as_index(ids)});
}

}  // namespace tessera
