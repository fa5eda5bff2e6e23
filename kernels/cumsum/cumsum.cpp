// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/cumsum/cumsum.h"

#include "tessera/kernels/shared/scan_impl.h"
#include "tessera/kernels/shared/strided_copy_impl.h"

namespace tessera::op {
namespace {

template <class A> struct Sums {
  static A start() { return A{}; }
  TESSERA_INLINE static A join(A a, A b) { return a + b; }
};

}  // namespace

MetaList Cumsum::meta(Metas in) const {
  const TensorMeta& x = in[0];
  if (!dtypes.has(x.dtype))
    fail<DTypeError>(name, "the input must be of ", dtypes, ": given ", x, "; cast it");
  (void)normalize_dim(dim, x.shape.rank(), name);
  return {x};
}

ShardingRule Cumsum::sharding(Metas in) const {
  const Shape& shape = in[0].shape;
  return scan::rule_along(shape, normalize_dim(dim, shape.rank(), name), 1, 1).linear({0});
}

void Cumsum::cpu(Tensors in, Outputs y) const {
  scan::scan<Sums, dtypes>(row_major(in[0]), y[0], normalize_dim(dim, in[0].rank(), name), reverse);
}

Grads Cumsum::vjp(const Saved&, const Grads& dy, Needs) const {
  return {cumsum(dy[0], dim, !reverse)};
}

std::vector<Sample<Cumsum>> Cumsum::samples() {
  return {
      {Cumsum{1, false}, {arg({5, 37})}},
      {Cumsum{0, true}, {arg({7, 5})}},
      {Cumsum{-2, false}, {arg({5, 6, 7})}},
      {Cumsum{-1, true}, {arg({5, 19})}},
      {Cumsum{0, false}, {arg({})}},
      {Cumsum{1, false}, {arg({5, 300})}},
      known(Cumsum{1, false}, {arg({2, 3}).listed({1, 2, 3, 4, 5, 6})}, {{1, 3, 6, 4, 9, 15}}),
      known(Cumsum{0, true}, {arg({2, 3}).listed({1, 2, 3, 4, 5, 6})}, {{5, 7, 9, 4, 5, 6}}),
      timed(Cumsum{1, false}, {arg({1024, 1024})}),
      timed(Cumsum{0, false}, {arg({1024, 1024})}),
      bad(Cumsum{2, false}, {arg({5, 7})}, "IndexError"),
      bad(Cumsum{0, false}, {arg({5}).as(DType::bool_)}, "DTypeError"),
  };
}

}  // namespace tessera::op
