// SPDX-License-Identifier: Apache-2.0
// flip: the order of some dims reversed. A copy, as torch's: strides of views are never negative.
#pragma once

#include "tessera/core/dims.h"
#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// x -> the same shape: y[..., i, ...] = x[..., n - 1 - i, ...] along each of `dims`.
struct Flip {
  Shape dims;
  static constexpr std::string_view name = "flip";
  static constexpr DTypeSet dtypes = kAllDTypes;
  static constexpr Saves saves = Saves::none();
  auto attributes() const { return std::tie(dims); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<Flip>> samples();
  /// x seen from the other end of `dims`, with negative strides: what kernels copy from.
  [[nodiscard]] Tensor reversed(const Tensor& x) const {
    Shape strides = x.strides();
    int64_t offset = x.offset();
    for (const int64_t dim : dims) {
      const int d = normalize_dim(static_cast<int>(dim), x.rank(), name);
      offset += (x.shape()[d] - 1) * strides[d];
      strides[d] = -strides[d];
    }
    return alias(x, x.shape(), strides, offset);
  }
};

using flip_ops = OpList<Flip>;

}  // namespace op

/// x with the order of `dims` reversed; dims may count from the end. IndexError for a dim that x
/// lacks, ShapeError for one given twice.
inline Tensor flip(const Tensor& x, Dims dims) {
  op::Flip op;
  for (const int dim : dims) op.dims.push_back(dim);
  return call(op, {x});
}

}  // namespace tessera
