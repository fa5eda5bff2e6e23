// SPDX-License-Identifier: Apache-2.0
// Functions made of reshape, permute, expand and slice. They have no op of their own, so that
// gradients, layouts and plans are those of the ops below; each checks what it was given under its
// own name.
#include "tessera/core/message.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"

#include <algorithm>

namespace tessera {
namespace {

// A 0-dim tensor has no dim at all, where normalize_dim takes 0 and -1.
int existing_dim(const Tensor& x, int dim, std::string_view name) {
  if (x.rank() == 0)
    fail<ShapeError>(name, "a 0-dim tensor has no dim ", dim, ": given ", x.meta());
  return normalize_dim(dim, x.rank(), name);
}

std::vector<Tensor> pieces(const Tensor& x, const std::vector<int64_t>& sizes, int dim) {
  std::vector<Tensor> all;
  all.reserve(sizes.size());
  int64_t at = 0;
  for (const int64_t size : sizes) {
    all.push_back(call(op::Slice{dim, at, 1, size}, {x}));
    at += size;
  }
  return all;
}

// A dim of size 0 is one empty piece.
std::vector<int64_t> equal_sizes(int64_t total, int64_t size) {
  std::vector<int64_t> sizes{std::min(size, total)};
  for (int64_t at = sizes[0]; at < total; at += size) sizes.push_back(std::min(size, total - at));
  return sizes;
}

}  // namespace

Tensor squeeze(const Tensor& x, Dims dims) {
  uint32_t gone = 0;
  for (const int dim : dims) {
    const int d = existing_dim(x, dim, "squeeze");
    if (x.shape()[d] != 1)
      fail<ShapeError>("squeeze", "dim ", dim, " must have size 1: given ", x.meta(),
                       "; select one of its elements, or flatten it into its neighbour");
    gone |= 1u << d;
  }
  Shape shape;
  for (int d = 0; d < x.rank(); ++d) {
    if (!(gone >> d & 1)) shape.push_back(x.shape()[d]);
  }
  return reshape(x, shape);
}

Tensor squeeze(const Tensor& x) {
  Shape shape;
  for (const int64_t size : x.shape()) {
    if (size != 1) shape.push_back(size);
  }
  return reshape(x, shape);
}

Tensor unsqueeze(const Tensor& x, int dim) {
  const int d = normalize_dim(dim, x.rank() + 1, "unsqueeze");
  Shape shape;
  for (int i = 0; i < d; ++i) shape.push_back(x.shape()[i]);
  shape.push_back(1);
  for (int i = d; i < x.rank(); ++i) shape.push_back(x.shape()[i]);
  return reshape(x, shape);
}

Tensor flatten(const Tensor& x, int first, int last) {
  const int from = normalize_dim(first, x.rank(), "flatten");
  const int to = normalize_dim(last, x.rank(), "flatten");
  if (from > to)
    fail<ShapeError>("flatten", "the first dim must not come after the last: given ", first,
                     " and ", last, " for ", x.meta());
  if (x.rank() == 0) return reshape(x, {1});
  Shape shape;
  int64_t merged = 1;
  for (int i = 0; i < x.rank(); ++i) {
    if (i < from || i > to) shape.push_back(x.shape()[i]);
    else merged *= x.shape()[i];
    if (i == to) shape.push_back(merged);
  }
  return reshape(x, shape);
}

Tensor unflatten(const Tensor& x, int dim, const Shape& sizes) {
  const int d = existing_dim(x, dim, "unflatten");
  const int64_t whole = x.shape()[d];
  int64_t known = 1;
  int unknown = 0;
  for (const int64_t size : sizes) {
    if (size == -1) ++unknown;
    else known *= size;
    if (size < -1) known = -1;
  }
  const bool fits = unknown == 0   ? known == whole
                    : unknown == 1 ? known > 0 && whole % known == 0
                                   : false;
  if (!fits || sizes.rank() == 0)
    fail<ShapeError>("unflatten", "sizes ", sizes, " must multiply to dim ", dim, " (", whole,
                     "), with -1 once at most: given ", x.meta());
  Shape shape;
  for (int i = 0; i < x.rank(); ++i) {
    if (i != d) shape.push_back(x.shape()[i]);
    for (int j = 0; i == d && j < sizes.rank(); ++j)
      shape.push_back(sizes[j] == -1 ? whole / known : sizes[j]);
  }
  return reshape(x, shape);
}

Tensor movedim(const Tensor& x, int from, int to) {
  const int source = existing_dim(x, from, "movedim"), target = existing_dim(x, to, "movedim");
  if (source == target) return x;
  Shape order;
  for (int d = 0, next = 0; d < x.rank(); ++d) {
    if (d == target) {
      order.push_back(source);
      continue;
    }
    if (next == source) ++next;
    order.push_back(next++);
  }
  return permute(x, order);
}

Tensor narrow(const Tensor& x, int dim, int64_t start, int64_t count) {
  const int d = existing_dim(x, dim, "narrow");
  const int64_t size = x.shape()[d], begin = start < 0 ? start + size : start;
  if (begin < 0 || count < 0 || begin > size || count > size - begin)
    fail<IndexError>("narrow", counted(count, "element"), " from ", start,
                     " would not lie inside dim ", dim, " of ", x.meta());
  return call(op::Slice{d, begin, 1, count}, {x});
}

std::vector<Tensor> split(const Tensor& x, int64_t size, int dim) {
  const int d = existing_dim(x, dim, "split");
  if (size < 1)
    fail<ValueError>("split", "pieces must have at least 1 element: given ", size, " for ",
                     x.meta());
  return pieces(x, equal_sizes(x.shape()[d], size), d);
}

std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& sizes, int dim) {
  const int d = existing_dim(x, dim, "split");
  int64_t total = 0;
  for (const int64_t size : sizes) {
    if (size < 0)
      fail<ShapeError>("split", "sizes must not be negative: given ", size, " for ", x.meta());
    total += size;
  }
  if (total != x.shape()[d])
    fail<ShapeError>("split", "sizes must add up to dim ", dim, " (", x.shape()[d], "): they make ",
                     total, " for ", x.meta());
  return pieces(x, sizes, d);
}

std::vector<Tensor> chunk(const Tensor& x, int64_t chunks, int dim) {
  const int d = existing_dim(x, dim, "chunk");
  if (chunks < 1)
    fail<ValueError>("chunk", "expected at least 1 chunk: given ", chunks, " for ", x.meta());
  const int64_t size = x.shape()[d];
  // As many empty chunks as were asked for, so that code over the chunks sees them all.
  if (size == 0) return pieces(x, std::vector<int64_t>(static_cast<size_t>(chunks), 0), d);
  return pieces(x, equal_sizes(size, (size - 1) / chunks + 1), d);
}

Tensor diagonal(const Tensor& x, int64_t offset, int dim1, int dim2) {
  return call(op::Diagonal{offset, dim1, dim2}, {x});
}

Tensor diag_embed(const Tensor& x, int64_t offset, int dim1, int dim2) {
  if (x.rank() == 0)
    fail<ShapeError>("diag_embed", "a 0-dim tensor has no diagonal to give: given ", x.meta());
  const int64_t size = x.shape().back() + (offset < 0 ? -offset : offset);
  return call(op::DiagonalPad{offset, dim1, dim2, size, size}, {x});
}

Tensor eye(int64_t rows, int64_t columns, DType dtype, Device device) {
  const int64_t width = columns == -1 ? rows : columns;
  if (rows < 0 || width < 0)
    fail<ShapeError>("eye", "sizes must not be negative: given ", rows, " and ", columns);
  return call(op::DiagonalPad{0, 0, 1, rows, width},
              {ones({std::min(rows, width)}, dtype, device)});
}

Tensor repeat(const Tensor& x, const Shape& times) {
  const int lead = times.rank() - x.rank();
  if (lead < 0 || std::ranges::any_of(times, [](int64_t t) { return t < 0; }))
    fail<ShapeError>("repeat", "expected a number of times, 0 or more, for each dim of ", x.meta(),
                     ", after those of new leading dims: given ", times);
  Shape apart, spread, whole;  // a repeated dim is two dims, (times, size), while it is spread
  for (int d = 0; d < times.rank(); ++d) {
    const int64_t size = d < lead ? 1 : x.shape()[d - lead], t = times[d];
    if (size != 1 && t != 1) {
      apart.push_back(1);
      spread.push_back(t);
    }
    apart.push_back(size);
    spread.push_back(size == 1 ? t : size);
    whole.push_back(t * size);
  }
  return reshape(copy(expand(reshape(x, apart), spread)), whole);
}

Tensor tile(const Tensor& x, const Shape& times) {
  Shape all = Shape::filled(std::max(x.rank() - times.rank(), 0), 1);
  for (const int64_t t : times) all.push_back(t);
  return repeat(x, all);
}

Tensor repeat_interleave(const Tensor& x, int64_t times, std::optional<int> dim) {
  if (times < 0)
    fail<ShapeError>("repeat_interleave", "the number of times must not be negative: given ", times,
                     " for ", x.meta());
  if (!dim) return repeat_interleave(flatten(x), times, 0);
  const int d = existing_dim(x, *dim, "repeat_interleave");
  const Tensor apart = unsqueeze(x, d + 1);
  Shape spread = apart.shape();
  spread[d + 1] = times;
  return flatten(copy(expand(apart, spread)), d, d + 1);
}

}  // namespace tessera
