// SPDX-License-Identifier: Apache-2.0
// index_put_: writes values to places of a tensor that index tensors name, in their order: the
// last of equal places wins, or all add up, with the same bits on every run. indexing.h makes the
// calls from `{0, slice(1, 3), ids}`.
#pragma once

#include "tessera/core/op.h"
#include "tessera/kernels/index_put/indexing.h"

namespace tessera {
namespace op {

/// Inputs x (n_0, ..., n_k-1, ...), values (m, ...), then k >= 1 indices i64 (m), one per leading
/// dim: x[i_0[j], ..., i_k-1[j]] = values[j], or += values[j], for j = 0, 1, ...
struct IndexPut {
  bool accumulate = false;
  static constexpr std::string_view name = "index_put_";
  static constexpr DTypeSet dtypes = kNumbers | dtypes_of(DType::u8, DType::bool_);
  static constexpr NotDifferentiable vjp{"it works in place, on buffers and copies of parameters"};
  static constexpr bool writes(size_t i, size_t) { return i == 0; }
  auto attributes() const { return std::tie(accumulate); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs written) const;
  void cuda(Tensors in, Outputs written, Stream stream) const;
  static std::vector<Sample<IndexPut>> samples();
  /// One slice of x below the indexed dims, and where the indices lead.
  [[nodiscard]] static Tensor first_slice(const Tensor& x, size_t indexed) {
    Shape shape, strides;
    for (int d = static_cast<int>(indexed); d < x.rank(); ++d) {
      shape.push_back(x.shape()[d]);
      strides.push_back(x.strides()[d]);
    }
    return alias(x, shape, strides, x.offset());
  }
};

using index_put_ops = OpList<IndexPut>;

}  // namespace op
}  // namespace tessera
