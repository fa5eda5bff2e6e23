// SPDX-License-Identifier: Apache-2.0
// Views: reshape, permute, expand, slice, diagonal. They alias the bytes of their input and cost no
// kernel. The gradients of slice and diagonal are slice_pad and diagonal_pad, which have kernels.
// squeeze, flatten, split, repeat and the like are made of these (rearrange.cpp), and name
// themselves in errors.
#pragma once

#include "tessera/core/dims.h"
#include "tessera/core/op.h"

#include <limits>
#include <optional>
#include <vector>

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

/// The elements (i, i + offset) of dims `first` and `second`, as the last dim.
inline Geometry diagonal_of(const Geometry& in, int first, int second, int64_t offset) {
  const int64_t row = offset < 0 ? -offset : 0, column = offset > 0 ? offset : 0;
  const int64_t rows = in.shape[first] - row, columns = in.shape[second] - column;
  const int64_t count = rows <= 0 || columns <= 0 ? 0 : rows < columns ? rows : columns;
  Geometry out;
  for (int d = 0; d < in.shape.rank(); ++d) {
    if (d == first || d == second) continue;
    out.shape.push_back(in.shape[d]);
    out.strides.push_back(in.strides[d]);
  }
  out.shape.push_back(count);
  out.strides.push_back(in.strides[first] + in.strides[second]);
  out.offset = in.offset;
  if (count > 0) out.offset += row * in.strides[first] + column * in.strides[second];
  return out;
}

/// Elements (i, i + offset) of dims `dim1` and `dim2`, which go; they become the last dim.
struct Diagonal {
  int64_t offset = 0;
  int dim1 = 0, dim2 = 1;
  static constexpr std::string_view name = "diagonal";
  auto attributes() const { return std::tie(offset, dim1, dim2); }
  Geometry view(const Geometry& in) const;
  ShardingRule sharding(Metas in) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<Diagonal>> samples();
};

/// The transpose of Diagonal: the last dim of x lies on a diagonal of the new dims `dim1` and
/// `dim2` of sizes `size1` and `size2`; the rest is zero.
struct DiagonalPad {
  int64_t offset = 0;
  int dim1 = 0, dim2 = 1;
  int64_t size1 = 0, size2 = 0;
  static constexpr std::string_view name = "diagonal_pad";
  static constexpr DTypeSet dtypes = kAllDTypes;
  static constexpr Saves saves = Saves::none();
  auto attributes() const { return std::tie(offset, dim1, dim2, size1, size2); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<DiagonalPad>> samples();
  /// Where x lies inside y.
  [[nodiscard]] Tensor target(const Tensor& y) const {
    const Geometry g =
        diagonal_of({y.shape(), y.strides(), y.offset()}, normalize_dim(dim1, y.rank(), name),
                    normalize_dim(dim2, y.rank(), name), offset);
    return alias(y, g.shape, g.strides, g.offset);
  }
};

using views_ops = OpList<Reshape, Permute, Expand, Slice, SlicePad, Diagonal, DiagonalPad>;

}  // namespace op

/// One size may be -1: it follows from the rest. Copies first where the strides cannot express the
/// shape.
TESSERA_API Tensor reshape(const Tensor& x, Shape shape);
TESSERA_API Tensor permute(const Tensor& x, const Shape& order);
/// Swaps two dims, which may count from the end.
TESSERA_API Tensor transpose(const Tensor& x, int dim0, int dim1);
/// x broadcast to `shape`, without copying; -1 keeps the size of a dim that x has. ShapeError where
/// the shape does not fit.
TESSERA_API Tensor expand(const Tensor& x, const Shape& shape);

/// A range of an index; negative ends count from the end of the dim.
struct Range {
  int64_t start = 0, stop = std::numeric_limits<int64_t>::max(), step = 1;
};
/// `x[slice(1, 3)]`: of dim 0. Of more dims: `x[{slice(1, 3), slice()}]`, or the function form.
inline Range slice() { return {}; }
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

// Made of the above. Dims may count from the end; IndexError names the function where one does not
// exist.

/// Without these dims, which must have size 1 (ShapeError); unlike torch's, which keeps others.
TESSERA_API Tensor squeeze(const Tensor& x, Dims dims);
/// Without any dims of size 1.
TESSERA_API Tensor squeeze(const Tensor& x);
/// With a new dim of size 1 at `dim` of the result: (B, D) at 1 -> (B, 1, D).
TESSERA_API Tensor unsqueeze(const Tensor& x, int dim);
/// Dims first..last as one: (B, T, H, D) from 2 -> (B, T, H * D). A 0-dim tensor becomes (1).
TESSERA_API Tensor flatten(const Tensor& x, int first = 0, int last = -1);
/// `dim` as several, one of which may be -1: (B, T, H * D) at 2 to {H, -1} -> (B, T, H, D).
TESSERA_API Tensor unflatten(const Tensor& x, int dim, const Shape& sizes);
/// Dim `from` moved to place `to`, the others in their order.
TESSERA_API Tensor movedim(const Tensor& x, int from, int to);
/// `count` elements of `dim` from `start` (which may count from the end); IndexError where they do
/// not lie inside, unlike slice, which cuts its ends.
TESSERA_API Tensor narrow(const Tensor& x, int dim, int64_t start, int64_t count);
/// Pieces of `size` elements of `dim`, the last one smaller where it does not divide.
TESSERA_API std::vector<Tensor> split(const Tensor& x, int64_t size, int dim = 0);
/// Pieces of these sizes, which must add up to the size of `dim` (ShapeError).
TESSERA_API std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& sizes,
                                      int dim = 0);
/// At most `chunks` pieces of ceil(size / chunks) elements, as torch: 5 in 4 chunks is 2, 2, 1.
TESSERA_API std::vector<Tensor> chunk(const Tensor& x, int64_t chunks, int dim = 0);
/// Elements (i, i + offset) of two dims as the last dim: (B, N, M), dims 1 and 2 -> (B, min(N, M)).
TESSERA_API Tensor diagonal(const Tensor& x, int64_t offset = 0, int dim1 = 0, int dim2 = 1);
/// The transpose of diagonal: x (..., N) on that diagonal of new dims, zeros elsewhere ->
/// (..., N + |offset|, N + |offset|).
TESSERA_API Tensor diag_embed(const Tensor& x, int64_t offset = 0, int dim1 = -2, int dim2 = -1);
/// Ones on the main diagonal, zeros elsewhere -> (rows, columns); `columns` -1: as many as rows.
/// ShapeError for a negative size.
TESSERA_API Tensor eye(int64_t rows, int64_t columns = -1, DType dtype = DType::f32,
                       Device device = kCpu);
/// The whole of x over and over: times[d] copies along dim d, as torch's `x.repeat`. `times` has
/// one number per dim of x, after those of new leading dims: (3) by {2, 2} -> (2, 6). Always a
/// copy. ShapeError for fewer numbers than x has dims, or a negative one.
TESSERA_API Tensor repeat(const Tensor& x, const Shape& times);
/// The same, where leading dims of x that have no number are not repeated.
TESSERA_API Tensor tile(const Tensor& x, const Shape& times);
/// Each element of `dim` `times` times in a row: (a, b) by 2 -> (a, a, b, b). Without a dim x is
/// flattened first. ShapeError for negative times. By a number of times per element:
/// index_select.h.
TESSERA_API Tensor repeat_interleave(const Tensor& x, int64_t times, std::optional<int> dim = {});

}  // namespace tessera
