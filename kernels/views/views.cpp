// SPDX-License-Identifier: Apache-2.0
// Views: how each maps shape and strides, which factors survive, and the gradients.
#include "tessera/kernels/views/views.h"

#include "tessera/core/message.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/shared/strided_copy_impl.h"

#include <cstring>
#include <numeric>
#include <optional>

namespace tessera::op {
namespace {

using Dims = SmallVector<DimFactor, kMaxRank>;

DimFactor factor_of(ShardingRule& r, int64_t size, int64_t scale = 1) {
  return {static_cast<int16_t>(r.add_factor(size)), scale};
}

// Views only move elements: sums, maxima and minima of partial tensors pass through.
ShardingRule finish(ShardingRule& r, const Dims& in, const Dims& out) {
  return r.operand(in).outputs_from_here().operand(out).linear({0}).monotone_up();
}

// The strides under which `in` has the shape `to`, if there are any: each group of dims that are
// merged or split together must lie without gaps. Sizes multiply to the same number.
std::optional<Shape> strides_for(const Geometry& in, const Shape& to) {
  if (in.shape.numel() == 0) return contiguous_strides(to);
  Shape strides = Shape::filled(to.rank(), 1);
  int out = to.rank() - 1;
  for (int d = in.shape.rank() - 1; d >= 0;) {
    // A run of input dims that lie without gaps.
    const int64_t base = in.strides[d];
    int64_t run = in.shape[d];
    int first = d;
    while (first > 0 &&
           (in.shape[first - 1] == 1 || run == 1 || in.strides[first - 1] == base * run)) {
      if (run == 1 && in.shape[first - 1] != 1) break;
      run *= in.shape[--first];
    }
    int64_t taken = 1;
    while (out >= 0 && (taken < run || to[out] == 1)) {
      strides[out] = base * taken;
      taken *= to[out--];
    }
    if (taken != run) return std::nullopt;
    d = first - 1;
  }
  return strides;
}

void check_sizes(std::string_view name, const Shape& to, std::string_view hint = "") {
  for (int64_t s : to) {
    if (s < 0) fail<ShapeError>(name, "sizes must not be negative: given ", to, hint);
  }
}

int own_dim(std::string_view name, int dim, const Shape& shape) {
  if (shape.rank() == 0)
    fail<ShapeError>(name, "a 0-dim tensor has no dim to cut: given shape ", shape);
  return normalize_dim(dim, shape.rank(), name);
}

// Elements start, start + step, ... must lie inside [0, size).
void check_range(std::string_view name, int64_t start, int64_t step, int64_t count, int64_t size,
                 const Shape& shape) {
  if (step < 1)
    fail<ValueError>(name, "the step must be at least 1: given ", step, " for shape ", shape);
  if (start < 0 || count < 0 ||
      (count == 0 ? start > size : start >= size || (size - 1 - start) / step < count - 1)) {
    fail<IndexError>(name, counted(count, "element"), " from ", start, " at step ", step,
                     " would not lie inside a dim of size ", size, ": given shape ", shape);
  }
}

// Every dim but `dim`, which must be whole: its positions are global.
ShardingRule rule_but(const Shape& shape, int dim, bool whole_dim) {
  ShardingRule r;
  Dims in, out;
  for (int d = 0; d < shape.rank(); ++d) {
    const bool free = d != dim || whole_dim;
    in.push_back(free ? factor_of(r, shape[d]) : DimFactor{});
    out.push_back(in.back());
  }
  return finish(r, in, out);
}

}  // namespace

// --- reshape ------------------------------------------------------------------------------------------------------

Geometry Reshape::view(const Geometry& in) const {
  check_sizes(name, to, "; -1 is resolved by reshape(x, shape)");
  if (checked_numel(to, 1, name) != in.shape.numel()) {
    fail<ShapeError>(name, "given ", in.shape, " of ", counted(in.shape.numel(), "element"),
                     ", expected as many as ", to, " holds (", to.numel(), ")");
  }
  const auto strides = strides_for(in, to);
  if (!strides) {
    fail<ShapeError>(name, "shape ", in.shape, " with strides ", in.strides,
                     " cannot be viewed as ", to, "; copy it first");
  }
  return {to, *strides, in.offset};
}

bool Reshape::can_view(const Geometry& in) const { return strides_for(in, to).has_value(); }

ShardingRule Reshape::sharding(Metas in) const {
  const Shape& from = in[0].shape;
  ShardingRule r;
  Dims a(static_cast<size_t>(from.rank())), b(static_cast<size_t>(to.rank()));
  const bool empty = from.numel() == 0;
  int i = 0, j = 0;
  while (i < from.rank() && j < to.rank()) {
    const auto ai = static_cast<size_t>(i), bj = static_cast<size_t>(j);
    if (from[i] == to[j]) {
      a[ai] = b[bj] = factor_of(r, from[i]);
      ++i, ++j;
    } else if (empty) {
      break;  // products say nothing about which dims belong together
    } else if (from[i] == 1) {
      ++i;
    } else if (to[j] == 1) {
      ++j;
    } else {
      // Dims merged or split together: a cut must fall between whole steps of both leading dims.
      const int64_t steps = std::gcd(from[i], to[j]);
      a[ai] = factor_of(r, steps, from[i] / steps);
      b[bj] = {a[ai].factor, to[j] / steps};
      int64_t p = from[i++], q = to[j++];
      while (p != q) p < q ? p *= from[i++] : q *= to[j++];
    }
  }
  return finish(r, a, b);
}

Grads Reshape::vjp(const Saved& s, const Grads& dy, Needs) const {
  return {reshape(dy[0], s.input_meta(0).shape)};
}

std::vector<Sample<Reshape>> Reshape::samples() {
  return {
      {Reshape{{5, 12}}, {arg({5, 3, 4})}},
      {Reshape{{6, 5}}, {arg({30})}},
      {Reshape{{12, 5, 2}}, {arg({8, 15})}},
      {Reshape{{7, 1, 6}}, {arg({1, 7, 6})}},
      {Reshape{{}}, {arg({1, 1})}},
      {Reshape{{2, 3, 1, 4, 5}}, {arg({6, 20})}},
      known(Reshape{{3, 2}}, {arg({2, 3}).listed({1, 2, 3, 4, 5, 6})}, {{1, 2, 3, 4, 5, 6}}),
      timed(Reshape{{1024, 32, 32}}, {arg({1024, 1024})}),
      bad(Reshape{{7, 2}}, {arg({3, 4})}, "ShapeError"),
      bad(Reshape{{-1, 4}}, {arg({3, 4})}, "ShapeError"),
  };
}

// --- permute ------------------------------------------------------------------------------------------------------

Geometry Permute::view(const Geometry& in) const {
  const int rank = in.shape.rank();
  uint32_t seen = 0;
  bool fits = order.rank() == rank;
  for (int64_t d : order) {
    fits = fits && d >= 0 && d < rank && !(seen >> d & 1);
    if (fits) seen |= 1u << d;
  }
  if (!fits)
    fail<ShapeError>(name, "the order must hold each dim once: given ", order, " for shape ",
                     in.shape, " of rank ", rank);
  Geometry out = in;
  for (int d = 0; d < rank; ++d) {
    out.shape[d] = in.shape[static_cast<int>(order[d])];
    out.strides[d] = in.strides[static_cast<int>(order[d])];
  }
  return out;
}

ShardingRule Permute::sharding(Metas in) const {
  ShardingRule r;
  Dims a, b;
  for (int64_t size : in[0].shape) a.push_back(factor_of(r, size));
  for (int64_t d : order) b.push_back(a[static_cast<size_t>(d)]);
  return finish(r, a, b);
}

Grads Permute::vjp(const Saved&, const Grads& dy, Needs) const {
  Shape back = order;
  for (int d = 0; d < order.rank(); ++d) back[static_cast<int>(order[d])] = d;
  return {permute(dy[0], back)};
}

std::vector<Sample<Permute>> Permute::samples() {
  return {
      {Permute{{1, 0}}, {arg({5, 7})}},
      {Permute{{2, 0, 1}}, {arg({5, 6, 7})}},
      {Permute{{}}, {arg({})}},
      known(Permute{{1, 0}}, {arg({2, 3}).listed({1, 2, 3, 4, 5, 6})}, {{1, 4, 2, 5, 3, 6}}),
      timed(Permute{{1, 0}}, {arg({1024, 1024})}),
      bad(Permute{{0, 0}}, {arg({3, 4})}, "ShapeError"),
      bad(Permute{{0}}, {arg({3, 4})}, "ShapeError"),
  };
}

// --- expand -------------------------------------------------------------------------------------------------------

Geometry Expand::view(const Geometry& in) const {
  check_sizes(name, to, "; -1 keeps the size of a dim that the input has");
  (void)checked_numel(to, 1, name);
  const int lead = to.rank() - in.shape.rank();
  Geometry out{to, Shape::filled(to.rank(), 0), in.offset};
  bool fits = lead >= 0;
  for (int d = 0; fits && d < in.shape.rank(); ++d) {
    fits = in.shape[d] == to[lead + d] || in.shape[d] == 1;
    if (in.shape[d] == to[lead + d]) out.strides[lead + d] = in.strides[d];
  }
  if (!fits) {
    fail<ShapeError>(name, "given ", in.shape, ", expected a shape that broadcasts to ", to,
                     ": sizes, counted from the right, equal or 1");
  }
  return out;
}

ShardingRule Expand::sharding(Metas in) const {
  const Shape& from = in[0].shape;
  ShardingRule r;
  Dims a, b;
  for (int64_t size : to) b.push_back(factor_of(r, size));
  for (int d = 0; d < from.rank(); ++d) {
    const int at = to.rank() - from.rank() + d;
    a.push_back(from[d] == to[at] ? b[static_cast<size_t>(at)] : DimFactor{});
  }
  return finish(r, a, b);
}

Grads Expand::vjp(const Saved& s, const Grads& dy, Needs) const {
  return {sum_to(dy[0], s.input_meta(0).shape)};
}

std::vector<Sample<Expand>> Expand::samples() {
  return {
      {Expand{{5, 7}}, {arg({5, 1})}},
      {Expand{{6, 5, 7}}, {arg({7})}},
      {Expand{{5}}, {arg({})}},
      {Expand{{5, 6}}, {arg({5, 6})}},
      known(Expand{{2, 2, 3}}, {arg({2, 1}).listed({1, 2})},
            {{1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2}}),
      timed(Expand{{1024, 1024}}, {arg({1024})}),
      bad(Expand{{5, 7}}, {arg({5, 2})}, "ShapeError"),
      bad(Expand{{7}}, {arg({5, 7})}, "ShapeError"),
      bad(Expand{{-1, 7}}, {arg({1, 7})}, "ShapeError"),
  };
}

// --- slice --------------------------------------------------------------------------------------------------------

Geometry Slice::view(const Geometry& in) const {
  const int d = own_dim(name, dim, in.shape);
  check_range(name, start, step, count, in.shape[d], in.shape);
  Geometry out = in;
  out.shape[d] = count;
  out.strides[d] = in.strides[d] * step;
  if (count > 0) out.offset += start * in.strides[d];
  return out;
}

ShardingRule Slice::sharding(Metas in) const {
  const int d = own_dim(name, dim, in[0].shape);
  return rule_but(in[0].shape, d, count == in[0].shape[d]);
}

Slice Slice::local(const Piece& piece) const {
  const int d = dim < 0 ? dim + static_cast<int>(piece.operands[0].size()) : dim;
  const Piece::Range& range = piece.range(0, d);
  return count == range.global ? Slice{d, 0, 1, range.size} : *this;
}

Grads Slice::vjp(const Saved& s, const Grads& dy, Needs) const {
  return {call(
      SlicePad{dim, start, step, s.input_meta(0).shape[own_dim(name, dim, s.input_meta(0).shape)]},
      {dy[0]})};
}

std::vector<Sample<Slice>> Slice::samples() {
  return {
      {Slice{0, 1, 1, 3}, {arg({6, 5})}},
      {Slice{-1, 0, 3, 3}, {arg({5, 8})}},
      {Slice{1, 2, 2, 2}, {arg({5, 7, 6})}},
      {Slice{0, 0, 1, 5}, {arg({5, 3})}},
      {Slice{0, 2, 1, 0}, {arg({4, 5})}},
      known(Slice{1, 0, 2, 2}, {arg({2, 3}).listed({1, 2, 3, 4, 5, 6})}, {{1, 3, 4, 6}}),
      known(Slice{0, 1, 1, 1}, {arg({2, 3}).listed({1, 2, 3, 4, 5, 6})}, {{4, 5, 6}}),
      timed(Slice{1, 128, 1, 512}, {arg({1024, 1024})}),
      bad(Slice{0, 2, 1, 3}, {arg({4})}, "IndexError"),
      bad(Slice{2, 0, 1, 1}, {arg({4, 5})}, "IndexError"),
      bad(Slice{0, 0, 0, 1}, {arg({4})}, "ValueError"),
      bad(Slice{0, 0, 1, 1}, {arg({})}, "ShapeError"),
  };
}

MetaList SlicePad::meta(Metas in) const {
  const TensorMeta& x = in[0];
  const int d = own_dim(name, dim, x.shape);
  check_range(name, start, step, x.shape[d], size, x.shape);
  Shape out = x.shape;
  out[d] = size;
  return {{out, x.dtype, x.device}};
}

ShardingRule SlicePad::sharding(Metas in) const {
  const int d = own_dim(name, dim, in[0].shape);
  return rule_but(in[0].shape, d, size == in[0].shape[d]);
}

SlicePad SlicePad::local(const Piece& piece) const {
  const int d = dim < 0 ? dim + static_cast<int>(piece.operands[0].size()) : dim;
  const Piece::Range& range = piece.range(0, d);
  return size == range.global ? SlicePad{d, 0, 1, range.size} : *this;
}

void SlicePad::cpu(Tensors in, Outputs y) const {
  const Tensor& x = in[0];
  const int d = own_dim(name, dim, x.shape());
  if (y[0].numel() == 0) return;
  auto* bytes = static_cast<std::byte*>(y[0].raw_data());
  parallel_for(y[0].numel() * item_size(y[0].dtype()), 1 << 18,
               [bytes](int64_t begin, int64_t end) {
                 std::memset(bytes + begin, 0, static_cast<size_t>(end - begin));
               });
  if (x.numel() == 0) return;
  Shape strides = y[0].strides();
  const int64_t offset = y[0].offset() + start * strides[d];
  strides[d] *= step;
  strided_copy(alias(y[0], x.shape(), strides, offset), x);
}

Grads SlicePad::vjp(const Saved& s, const Grads& dy, Needs) const {
  const Shape& shape = s.input_meta(0).shape;
  return {call(Slice{dim, start, step, shape[own_dim(name, dim, shape)]}, {dy[0]})};
}

std::vector<Sample<SlicePad>> SlicePad::samples() {
  return {
      {SlicePad{0, 1, 1, 6}, {arg({3, 5})}},
      {SlicePad{-1, 0, 3, 8}, {arg({5, 3})}},
      {SlicePad{1, 2, 2, 7}, {arg({5, 2, 6})}},
      {SlicePad{0, 0, 1, 5}, {arg({5, 3})}},
      known(SlicePad{1, 1, 2, 4}, {arg({2, 2}).listed({1, 2, 3, 4})}, {{0, 1, 0, 2, 0, 3, 0, 4}}),
      timed(SlicePad{1, 128, 1, 1024}, {arg({1024, 512})}),
      bad(SlicePad{0, 2, 1, 4}, {arg({3})}, "IndexError"),
      bad(SlicePad{0, 0, 0, 4}, {arg({3})}, "ValueError"),
  };
}

}  // namespace tessera::op

namespace tessera {

Tensor reshape(const Tensor& x, Shape shape) {
  int64_t known = 1;
  int unknown = -1;
  for (int d = 0; d < shape.rank(); ++d) {
    if (shape[d] != -1) {
      known *= shape[d];
    } else if (unknown >= 0) {
      fail<ShapeError>("reshape", "only one size may be -1: given ", shape);
    } else {
      unknown = d;
    }
  }
  if (unknown >= 0) {
    if (known <= 0 || x.numel() % known != 0) {
      fail<ShapeError>("reshape", "no size fits the -1 of ", shape, ": given ", x.meta(), " of ",
                       counted(x.numel(), "element"));
    }
    shape[unknown] = x.numel() / known;
  }
  if (x.shape() == shape) return x;
  // Of a distributed tensor each rank views, or copies, its own part.
  const bool copies = !x.is_distributed() && !x.is_contiguous() && shape.numel() == x.numel() &&
                      !op::strides_for({x.shape(), x.strides(), x.offset()}, shape);
  return call(op::Reshape{shape}, {copies ? copy(x) : x});
}

Tensor permute(const Tensor& x, const Shape& order) {
  Shape own = order;
  for (int d = 0; d < own.rank(); ++d) own[d] += own[d] < 0 ? x.rank() : 0;
  return call(op::Permute{own}, {x});
}

Tensor transpose(const Tensor& x, int dim0, int dim1) {
  Shape order;
  for (int d = 0; d < x.rank(); ++d) order.push_back(d);
  if (x.rank() == 0) return x;
  std::swap(order[normalize_dim(dim0, x.rank(), "transpose")],
            order[normalize_dim(dim1, x.rank(), "transpose")]);
  return call(op::Permute{order}, {x});
}

Tensor expand(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  Shape to = shape;
  const int lead = to.rank() - x.rank();
  for (int d = std::max(lead, 0); d < to.rank(); ++d)
    to[d] = to[d] == -1 ? x.shape()[d - lead] : to[d];
  return call(op::Expand{to}, {x});
}

Tensor slice(const Tensor& x, int dim, Range range) {
  const int d = op::own_dim("slice", dim, x.shape());
  if (range.step < 1)
    fail<ValueError>("slice", "the step must be at least 1: given ", range.step, " for ", x.meta());
  const int64_t size = x.shape()[d];
  const auto clamp = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
  };
  const int64_t start = clamp(range.start), stop = clamp(range.stop);
  const int64_t count = stop > start ? (stop - start - 1) / range.step + 1 : 0;
  return call(op::Slice{d, start, range.step, count}, {x});
}

Tensor select(const Tensor& x, int dim, int64_t at) {
  const int d = op::own_dim("select", dim, x.shape());
  const int64_t size = x.shape()[d], index = at < 0 ? at + size : at;
  if (index < 0 || index >= size) {
    fail<IndexError>("select", "index ", at, " is out of range for dim ", dim, " of ", x.meta(),
                     ": expected ", -size, " to ", size - 1);
  }
  return reshape(call(op::Slice{d, index, 1, 1}, {x}), x.shape().without(d));
}

}  // namespace tessera
