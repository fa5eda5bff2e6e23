// SPDX-License-Identifier: Apache-2.0
// Checks, sharding, gradient and CPU kernel of tril and triu: a row is a copy between zeros.
#include "tessera/kernels/triangle/triangle.h"

#include "tessera/kernels/shared/rows_impl.h"

namespace tessera::op {

MetaList Triangle::meta(Metas in) const {
  const TensorMeta& x = in[0];
  if (!dtypes.has(x.dtype))
    fail<DTypeError>(name, "the input must be of ", dtypes, ": given ", x, "; cast it");
  if (x.shape.rank() < 2)
    fail<ShapeError>(name, "a triangle wants rows and columns, (..., R, C): given ", x);
  return {x};
}

ShardingRule Triangle::sharding(Metas in) const {
  return pointwise_rule(in, in[0].shape).linear({0}).monotone_up();
}

Triangle Triangle::local(const Piece& piece) const {
  const int rank = static_cast<int>(piece.operands[0].size());
  return {bounded() + piece.range(0, rank - 2).begin - piece.range(0, rank - 1).begin, upper};
}

void Triangle::cpu(Tensors in, Outputs y) const {
  const Tensor& x = in[0];
  if (x.numel() == 0) return;
  const int64_t height = x.shape()[x.rank() - 2], width = x.shape().back();
  const int64_t k = bounded();
  const Rows rows(x, x.rank() - 1);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    const T* from = x.data<T>();
    T* to = y[0].data<T>();
    parallel_for(rows.count, std::max<int64_t>(1, 16384 / width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t edge = std::clamp<int64_t>(row % height + k + (upper ? 0 : 1), 0, width);
        const int64_t first = upper ? edge : 0, last = upper ? width : edge;  // what stays
        const T* source = from + rows.offset(row);
        T* out = to + row * width;
        std::fill(out, out + first, T{});
        if (rows.stride == 1) std::copy(source + first, source + last, out + first);
        else
          for (int64_t j = first; j < last; ++j) out[j] = source[j * rows.stride];
        std::fill(out + last, out + width, T{});
      }
    });
  });
}

Grads Triangle::vjp(const Saved&, const Grads& dy, Needs) const { return {call(*this, {dy[0]})}; }

std::vector<Sample<Triangle>> Triangle::samples() {
  return {
      {{0, true}, {arg({5, 7})}},
      {{0, false}, {arg({7, 5})}},
      {{2, true}, {arg({5, 6, 6})}},
      {{-3, false}, {arg({3, 8, 5})}},
      {{-2, true}, {arg({6, 5})}},
      {{9, false}, {arg({5, 6})}},
      known(Triangle{0, true}, {arg({2, 3}).listed({1, 2, 3, 4, 5, 6})}, {{1, 2, 3, 0, 5, 6}}),
      known(Triangle{-1, false}, {arg({3, 2}).listed({1, 2, 3, 4, 5, 6})}, {{0, 0, 3, 0, 5, 6}}),
      timed(Triangle{0, true}, {arg({1024, 1024})}),
      timed(Triangle{0, false}, {arg({1024, 1024})}),
      bad(Triangle{}, {arg({5})}, "ShapeError"),
      bad(Triangle{}, {arg({5, 5}).as(DType::u8)}, "DTypeError"),
  };
}

}  // namespace tessera::op
