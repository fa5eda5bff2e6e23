// SPDX-License-Identifier: Apache-2.0
// Views: reshape, permute, expand, slice. They alias the bytes of their input and cost no kernel.
// The gradient of a slice is slice_pad, which has kernels.
#pragma once

#include "tessera/core/op.h"

#include <limits>

namespace tessera {
namespace op {

/// The same elements in row-major order under another shape. ShapeError if the strides cannot
/// express it.
struct Reshape {
  Shape to;
  static constexpr std::string_view name = "reshape";
  auto attributes() const { return std::tie(to); }
  Geometry view(const Geometry& in) const;
  /// Whether these strides can express the shape.
  bool can_view(const Geometry& in) const;
  ShardingRule sharding(Metas in) const;
  Reshape local(const Piece& piece) const { return {piece.local_shape(1)}; }
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<Reshape>> samples();
};

/// Output dim i is input dim order[i].
struct Permute {
  Shape order;
  static constexpr std::string_view name = "permute";
  auto attributes() const { return std::tie(order); }
  Geometry view(const Geometry& in) const;
  ShardingRule sharding(Metas in) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<Permute>> samples();
};

/// Broadcasts size-1 and missing leading dims to `to`, without copying.
struct Expand {
  Shape to;
  static constexpr std::string_view name = "expand";
  auto attributes() const { return std::tie(to); }
  Geometry view(const Geometry& in) const;
  ShardingRule sharding(Metas in) const;
  Expand local(const Piece& piece) const { return {piece.local_shape(1)}; }
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<Expand>> samples();
};

/// Elements start, start + step, ... of `dim`, `count` of them.
struct Slice {
  int dim = 0;
  int64_t start = 0, step = 1, count = 0;
  static constexpr std::string_view name = "slice";
  auto attributes() const { return std::tie(dim, start, step, count); }
  Geometry view(const Geometry& in) const;
  ShardingRule sharding(Metas in) const;
  Slice local(const Piece& piece) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<Slice>> samples();
};

/// The transpose of Slice: x lies at start, start + step, ... of `dim` of size `size`; the rest is
/// zero.
struct SlicePad {
  int dim = 0;
  int64_t start = 0, step = 1, size = 0;
  static constexpr std::string_view name = "slice_pad";
  static constexpr DTypeSet dtypes = kAllDTypes;
  static constexpr Saves saves = Saves::none();
  auto attributes() const { return std::tie(dim, start, step, size); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  SlicePad local(const Piece& piece) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<SlicePad>> samples();
};

using views_ops = OpList<Reshape, Permute, Expand, Slice, SlicePad>;

}  // namespace op

/// One size may be -1: it follows from the rest. Copies first where the strides cannot express the
/// shape.
TESSERA_API Tensor reshape(const Tensor& x, Shape shape);
TESSERA_API Tensor permute(const Tensor& x, const Shape& order);
/// Swaps two dims, which may count from the end.
TESSERA_API Tensor transpose(const Tensor& x, int dim0, int dim1);
TESSERA_API Tensor expand(const Tensor& x, const Shape& shape);

/// A range of an index; negative ends count from the end of the dim.
struct Range {
  int64_t start = 0, stop = std::numeric_limits<int64_t>::max(), step = 1;
};
/// `x[slice(1, 3)]`: of dim 0. More dims by the function form.
inline Range slice(int64_t start, int64_t stop = std::numeric_limits<int64_t>::max(),
                   int64_t step = 1) {
  return {start, stop, step};
}
/// Elements [start, stop) of `dim` at `step` > 0; ends beyond the dim are cut to it, as in Python.
TESSERA_API Tensor slice(const Tensor& x, int dim, Range range);
inline Tensor index(const Tensor& x, const Range& range) { return slice(x, 0, range); }
/// `x[i]`: one element of dim 0, the dim gone. IndexError out of range.
TESSERA_API Tensor select(const Tensor& x, int dim, int64_t at);
inline Tensor index(const Tensor& x, int64_t at) { return select(x, 0, at); }

}  // namespace tessera
