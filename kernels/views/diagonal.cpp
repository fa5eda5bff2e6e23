// SPDX-License-Identifier: Apache-2.0
// diagonal and its transpose. The two dims that meet cannot be cut: a piece of one holds other
// places of the diagonal than the same piece of the other. All other dims are free.
#include "tessera/core/message.h"
#include "tessera/kernels/shared/strided_copy_impl.h"
#include "tessera/kernels/views/views.h"

#include <cstring>

namespace tessera::op {
namespace {

struct Pair {
  int first, second;
};

Pair pair_of(std::string_view name, int dim1, int dim2, int rank, const Shape& shape) {
  if (rank < 2) fail<ShapeError>(name, "needs two dims or more: given shape ", shape);
  const Pair p{normalize_dim(dim1, rank, name), normalize_dim(dim2, rank, name)};
  if (p.first == p.second)
    fail<ShapeError>(name, "the two dims must differ: given ", dim1, " and ", dim2, " for shape ",
                     shape);
  return p;
}

// The rule of a diagonal of `square` dims, from them to the line or back.
ShardingRule rule_of(const Shape& square, Pair p, bool to_line) {
  ShardingRule r;
  SmallVector<DimFactor, kMaxRank> whole, line;
  for (int d = 0; d < square.rank(); ++d) {
    if (d == p.first || d == p.second) {
      whole.push_back({});
      continue;
    }
    whole.push_back({static_cast<int16_t>(r.add_factor(square[d])), 1});
    line.push_back(whole.back());
  }
  line.push_back({});
  r.operand(to_line ? whole : line).outputs_from_here().operand(to_line ? line : whole);
  return r.linear({0}).monotone_up();
}

}  // namespace

Geometry Diagonal::view(const Geometry& in) const {
  const Pair p = pair_of(name, dim1, dim2, in.shape.rank(), in.shape);
  return diagonal_of(in, p.first, p.second, offset);
}

ShardingRule Diagonal::sharding(Metas in) const {
  const Shape& shape = in[0].shape;
  return rule_of(shape, pair_of(name, dim1, dim2, shape.rank(), shape), true);
}

Grads Diagonal::vjp(const Saved& s, const Grads& dy, Needs) const {
  const Shape& shape = s.input_meta(0).shape;
  const Pair p = pair_of(name, dim1, dim2, shape.rank(), shape);
  return {call(DiagonalPad{offset, p.first, p.second, shape[p.first], shape[p.second]}, {dy[0]})};
}

std::vector<Sample<Diagonal>> Diagonal::samples() {
  return {
      {Diagonal{2, 1, 2}, {arg({5, 6, 7})}},
      {Diagonal{0, 0, 1}, {arg({6, 5})}},
      {Diagonal{-3, 2, 0}, {arg({7, 5, 6})}},
      {Diagonal{0, -1, -2}, {arg({5, 6, 8, 5})}},
      {Diagonal{9, 0, 1}, {arg({6, 5})}},
      known(Diagonal{1, 0, 1}, {arg({2, 3}).listed({1, 2, 3, 4, 5, 6})}, {{2, 6}}),
      known(Diagonal{-1, 0, 1}, {arg({2, 3}).listed({1, 2, 3, 4, 5, 6})}, {{4}}),
      timed(Diagonal{0, 0, 1}, {arg({1024, 1024})}),
      bad(Diagonal{0, 0, 1}, {arg({5})}, "ShapeError"),
      bad(Diagonal{0, 1, -1}, {arg({5, 6})}, "ShapeError"),
      bad(Diagonal{0, 0, 2}, {arg({5, 6})}, "IndexError"),
  };
}

// --- the transpose ------------------------------------------------------------------------------------------------

MetaList DiagonalPad::meta(Metas in) const {
  const TensorMeta& x = in[0];
  if (x.shape.rank() == 0)
    fail<ShapeError>(name, "a 0-dim tensor has no dim to lay on a diagonal: given ", x);
  const Pair p = pair_of(name, dim1, dim2, x.shape.rank() + 1, x.shape);
  const int64_t places = diagonal_of({{size1, size2}, {0, 0}, 0}, 0, 1, offset).shape.back();
  if (size1 < 0 || size2 < 0 || places != x.shape.back())
    fail<ShapeError>(name, "diagonal ", offset, " of ", size1, " by ", size2, " has ",
                     counted(places, "element"), ": given ", x);
  Shape out;
  for (int d = 0, from = 0; d < x.shape.rank() + 1; ++d)
    out.push_back(d == p.first ? size1 : d == p.second ? size2 : x.shape[from++]);
  checked_numel(out, item_size(x.dtype), name);
  return {{out, x.dtype, x.device}};
}

ShardingRule DiagonalPad::sharding(Metas in) const {
  const Shape& shape = in[0].shape;
  const Pair p = pair_of(name, dim1, dim2, shape.rank() + 1, shape);
  return rule_of(meta(in)[0].shape, p, false);
}

void DiagonalPad::cpu(Tensors in, Outputs y) const {
  if (y[0].numel() == 0) return;
  auto* bytes = static_cast<std::byte*>(y[0].raw_data());
  parallel_for(y[0].numel() * item_size(y[0].dtype()), 1 << 18,
               [bytes](int64_t begin, int64_t end) {
                 std::memset(bytes + begin, 0, static_cast<size_t>(end - begin));
               });
  strided_copy(target(y[0]), in[0]);
}

Grads DiagonalPad::vjp(const Saved&, const Grads& dy, Needs) const {
  return {diagonal(dy[0], offset, dim1, dim2)};
}

std::vector<Sample<DiagonalPad>> DiagonalPad::samples() {
  return {
      {DiagonalPad{2, 1, 2, 6, 7}, {arg({5, 5})}},
      {DiagonalPad{0, 0, 1, 6, 5}, {arg({5})}},
      {DiagonalPad{-3, 2, 0, 7, 6}, {arg({6, 4})}},
      known(DiagonalPad{1, 0, 1, 2, 3}, {arg({2}).listed({5, 7})}, {{0, 5, 0, 0, 0, 7}}),
      timed(DiagonalPad{0, 0, 1, 1024, 1024}, {arg({1024})}),
      bad(DiagonalPad{0, 0, 1, 6, 6}, {arg({5})}, "ShapeError"),
      bad(DiagonalPad{0, 0, 0, 5, 5}, {arg({5})}, "ShapeError"),
      bad(DiagonalPad{0, 0, 1, -5, 5}, {arg({5})}, "ShapeError"),
      bad(DiagonalPad{0, 0, 1, 1, 1}, {arg({})}, "ShapeError"),
  };
}

}  // namespace tessera::op
