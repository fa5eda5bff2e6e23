// SPDX-License-Identifier: Apache-2.0
// Checks, sharding, gradient, samples and CPU kernel of pad: the output is filled, then x is copied
// into its place. The other modes join three parts per padded dim.
#include "tessera/kernels/pad/pad.h"

#include "tessera/core/message.h"
#include "tessera/core/parallel.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/flip/flip.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/shared/strided_copy_impl.h"
#include "tessera/kernels/views/views.h"

#include <algorithm>

namespace tessera {
namespace op {

MetaList Pad::meta(Metas in) const {
  const TensorMeta& x = in[0];
  const int rank = x.shape.rank();
  bool fits = before.rank() == rank && after.rank() == rank;
  for (int d = 0; fits && d < rank; ++d) fits = before[d] >= 0 && after[d] >= 0;
  if (!fits)
    fail<ShapeError>(name, "expected 0 or more elements before and after each dim of ", x,
                     ": given ", before, " and ", after);
  Shape out = x.shape;
  for (int d = 0; d < rank; ++d) out[d] += before[d] + after[d];
  checked_numel(out, item_size(x.dtype), name);
  return {{out, x.dtype, x.device}};
}

ShardingRule Pad::sharding(Metas in) const {
  ShardingRule r;
  SmallVector<DimFactor, kMaxRank> from, to;
  for (int d = 0; d < in[0].shape.rank(); ++d) {
    const bool padded = before[d] + after[d] > 0;
    from.push_back(padded ? DimFactor{}
                          : DimFactor{static_cast<int16_t>(r.add_factor(in[0].shape[d])), 1});
    to.push_back(from.back());
  }
  r.operand(from).outputs_from_here().operand(to).monotone_up();
  return value == 0 ? r.linear({0}) : r;
}

void Pad::cpu(Tensors in, Outputs y) const {
  if (y[0].numel() == 0) return;
  if (!(in[0].shape() == y[0].shape()))
    Fill{y[0].shape(), y[0].dtype(), y[0].device(), value}.cpu({}, y);
  strided_copy(target(y[0], in[0].shape()), in[0]);
}

Grads Pad::vjp(const Saved& s, const Grads& dy, Needs) const {
  const Shape& shape = s.input_meta(0).shape;
  Tensor g = dy[0];
  for (int d = 0; d < shape.rank(); ++d) {
    if (before[d] + after[d] > 0) g = call(Slice{d, before[d], 1, shape[d]}, {g});
  }
  return {g};
}

std::vector<Sample<Pad>> Pad::samples() {
  return {
      {Pad{{1, 2}, {0, 3}, 0}, {arg({5, 7})}},
      {Pad{{0, 1}, {0, 0}, 1}, {arg({5, 6})}},
      {Pad{{0, 2, 0}, {0, 1, 0}, 0}, {arg({5, 6, 7})}},
      {Pad{{0, 0}, {0, 0}, 0}, {arg({5, 6})}},
      {Pad{{3}, {2}, 1}, {arg({0})}},
      timed(Pad{{0, 32}, {0, 32}, 0}, {arg({1024, 1024})}),
      known(Pad{{0, 1}, {1, 0}, 8}, {arg({1, 2}).listed({1, 2})}, {{8, 1, 2, 8, 8, 8}}),
      bad(Pad{{1}, {1}, 0}, {arg({5, 7})}, "ShapeError"),
      bad(Pad{{-1}, {1}, 0}, {arg({5})}, "ShapeError"),
  };
}

}  // namespace op

namespace {

std::string_view name_of(PadMode mode) {
  switch (mode) {
    case PadMode::constant: return "constant";
    case PadMode::reflect: return "reflect";
    case PadMode::replicate: return "replicate";
    default: return "circular";
  }
}

// `dim` with elements of x itself before and after it.
Tensor extended(const Tensor& x, int dim, int64_t before, int64_t after, PadMode mode) {
  const int64_t n = x.shape()[dim];
  const auto part = [&](int64_t start, int64_t count) { return narrow(x, dim, start, count); };
  const auto edge = [&](int64_t at, int64_t count) {
    Shape shape = x.shape();
    shape[dim] = count;
    return expand(part(at, 1), shape);
  };
  std::vector<Tensor> parts;
  if (before > 0) {
    parts.push_back(mode == PadMode::reflect     ? flip(part(1, before), {dim})
                    : mode == PadMode::replicate ? edge(0, before)
                                                 : part(n - before, before));
  }
  parts.push_back(x);
  if (after > 0) {
    parts.push_back(mode == PadMode::reflect     ? flip(part(n - 1 - after, after), {dim})
                    : mode == PadMode::replicate ? edge(n - 1, after)
                                                 : part(0, after));
  }
  return cat(parts, dim);
}

}  // namespace

Tensor pad(const Tensor& x, const Shape& sizes, PadMode mode, double value) {
  constexpr std::string_view kName = op::Pad::name;
  if (sizes.rank() % 2 != 0 || sizes.rank() / 2 > x.rank())
    fail<ShapeError>(kName, "expected pairs (before, after), one per dim from the last on: given ",
                     sizes, " for ", x.meta());
  Tensor y = x;
  op::Pad constant{Shape::filled(x.rank(), 0), Shape::filled(x.rank(), 0), value};
  bool grows = false;
  for (int pair = 0; pair < sizes.rank() / 2; ++pair) {
    const int d = x.rank() - 1 - pair;
    const int64_t before = sizes[2 * pair], after = sizes[2 * pair + 1], n = x.shape()[d];
    if (n + std::min<int64_t>(before, 0) + std::min<int64_t>(after, 0) < 0)
      fail<ShapeError>(kName, "sizes ", before, " and ", after, " take more than dim ", d,
                       " has: given ", x.meta());
    const int64_t most = std::max(before, after);
    const bool fits =
        mode == PadMode::constant || most <= 0 ||
        (mode == PadMode::replicate ? n > 0 : most <= n - (mode == PadMode::reflect ? 1 : 0));
    if (!fits)
      fail<ShapeError>(kName, "mode ", name_of(mode), " cannot add ", counted(most, "element"),
                       " to dim ", d, " of size ", n, ": given ", x.meta());
    // What is taken away goes after what is added, which is made of all of x.
    if (mode != PadMode::constant && most > 0)
      y = extended(y, d, std::max<int64_t>(before, 0), std::max<int64_t>(after, 0), mode);
    constant.before[d] = std::max<int64_t>(before, 0);
    constant.after[d] = std::max<int64_t>(after, 0);
    grows = grows || most > 0;
    if (before < 0) y = slice(y, d, {-before});
    if (after < 0) y = slice(y, d, {0, after});
  }
  if (mode == PadMode::constant && grows) return call(constant, {y});
  return y.handle() == x.handle() ? copy(x) : y;
}

}  // namespace tessera
