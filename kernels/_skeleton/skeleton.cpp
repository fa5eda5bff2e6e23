// SPDX-License-Identifier: Apache-2.0
// Checks, sharding, gradient, samples and CPU kernel: say what is special about them.
#include "tessera/kernels/skeleton/skeleton.h"

#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/shared/rows_impl.h"

namespace tessera::op {

MetaList Skeleton::meta(Metas in) const {
  const auto &x = in[0], &w = in[1];
  if (x.dtype != w.dtype || !dtypes.has(x.dtype)) {
    fail<DTypeError>(name, "x and w must share one dtype of ", dtypes, ": x is ", x, ", w is ", w,
                     "; cast one");
  }
  if (x.shape.rank() < 1 || w.shape.rank() != 1 || w.shape[0] != x.shape.back()) {
    fail<ShapeError>(name, "w must be (d) for x (..., d): x is ", x, ", w is ", w);
  }
  return {x};
}

ShardingRule Skeleton::sharding(Metas in) const {
  return rule("... d, d -> ... d", in).linear({0}).linear({1});
}

void Skeleton::cpu(Tensors in, Outputs y) const {
  const Tensor& x = in[0];
  if (x.numel() == 0) return;
  dispatch<kFloats>(x.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Rows from(x, x.rank() - 1), weights(in[1], 0), to(y[0], x.rank() - 1);
    const T *src = x.data<T>(), *w = in[1].data<T>();
    T* dst = y[0].data<T>();
    for_each_row<C>(from.count, from.n, 2, [&](int64_t row, C* buffer, int64_t padded) {
      simd([&]() TESSERA_LAMBDA {
        C* weight = buffer + padded;
        rows::load(src + from.offset(row), from.stride, from.n, buffer);  // (d)
        rows::load(w, weights.stride, from.n, weight);                    // (d)
#pragma GCC ivdep
        for (int64_t i = 0; i < from.n; ++i) buffer[i] *= weight[i] * static_cast<C>(factor);
        rows::store(buffer, from.n, dst + to.offset(row), to.stride);
      });
    });
  });
}

Grads Skeleton::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  Grads g(2);
  if (needs[0]) g[0] = skeleton(dy[0], s.input(1), factor);
  if (needs[1]) g[1] = affine(sum_to(mul(dy[0], s.input(0)), s.input(1).shape()), factor, 0);
  return g;
}

std::vector<Sample<Skeleton>> Skeleton::samples() {
  return {
      {{1}, {arg({5, 7}), arg({7})}},
      {{-0.5}, {arg({2, 5, 6}), arg({6})}},
      known(Skeleton{2}, {arg({2, 2}).listed({1, 2, 3, 4}), arg({2}).listed({0.5, -1})},
            {{1, -4, 3, -8}}),  // by hand
      timed(Skeleton{1}, {arg({4096, 1024}), arg({1024})}),
      bad(Skeleton{}, {arg({4, 6}), arg({5})}, "ShapeError"),
      bad(Skeleton{}, {arg({4, 6}).as(DType::f32), arg({6}).as(DType::bf16)}, "DTypeError"),
  };
}

}  // namespace tessera::op
