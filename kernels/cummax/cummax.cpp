// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/cummax/cummax.h"

#include "tessera/kernels/gather/gather.h"
#include "tessera/kernels/shared/scan_impl.h"
#include "tessera/kernels/shared/strided_copy_impl.h"

namespace tessera::op {
namespace {

// Whether v takes the place of the best so far.
template <bool kLargest, class A> TESSERA_INLINE bool takes(A v, A best) {
  return (kLargest ? v >= best : v <= best) | (v != v);
}

template <bool kLargest, class T>
TESSERA_INLINE void along_row(const T* x, T* y, int64_t* at, int64_t n) {
  using A = compute_t<T>;
  A best = static_cast<A>(x[0]);
  int64_t place = 0;
  for (int64_t i = 0; i < n; ++i) {
    const A v = static_cast<A>(x[i]);
    const bool better = takes<kLargest>(v, best);
    best = better ? v : best;
    place = better ? i : place;
    y[i] = static_cast<T>(best);
    at[i] = place;
  }
}

template <bool kLargest, class T>
TESSERA_INLINE void along_columns(const T* x, T* y, int64_t* at, int64_t n, int64_t stride,
                                  int64_t width) {
  using A = compute_t<T>;
  A best[scan::kMostColumns];
  int64_t place[scan::kMostColumns];
  for (int64_t c = 0; c < width; ++c) {
    best[c] = static_cast<A>(x[c]);
    place[c] = 0;
  }
  for (int64_t i = 0; i < n; ++i, x += stride, y += stride, at += stride) {
    for (int64_t c = 0; c < width; ++c) {
      const A v = static_cast<A>(x[c]);
      const bool better = takes<kLargest>(v, best[c]);
      best[c] = better ? v : best[c];
      place[c] = better ? i : place[c];
      y[c] = static_cast<T>(best[c]);
      at[c] = place[c];
    }
  }
}

}  // namespace

template <class Op> MetaList Cumextreme<Op>::meta(Metas in) const {
  const TensorMeta& x = in[0];
  if (!dtypes.has(x.dtype))
    fail<DTypeError>(Op::name, "the input must be of ", dtypes, ": given ", x, "; cast it");
  (void)normalize_dim(dim, x.shape.rank(), Op::name);
  return {x, {x.shape, DType::i64, x.device}};
}

template <class Op> ShardingRule Cumextreme<Op>::sharding(Metas in) const {
  const Shape& shape = in[0].shape;
  return scan::rule_along(shape, normalize_dim(dim, shape.rank(), Op::name), 1, 2);
}

template <class Op> void Cumextreme<Op>::cpu(Tensors in, Outputs y) const {
  const Tensor x = row_major(in[0]);
  const scan::Lines l(x.shape(), normalize_dim(dim, x.rank(), Op::name));
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    const T* from = x.data<T>();
    T* values = y[0].data<T>();
    int64_t* indices = y[1].data<int64_t>();
    scan::for_each_line(
        l,
        [&](int64_t at) {
          simd([&]() TESSERA_LAMBDA {
            along_row<Op::kLargest>(from + at, values + at, indices + at, l.n);
          });
        },
        [&](int64_t at, int64_t columns) {
          simd([&]() TESSERA_LAMBDA {
            along_columns<Op::kLargest>(from + at, values + at, indices + at, l.n, l.inner,
                                        columns);
          });
        });
  });
}

template <class Op> Grads Cumextreme<Op>::vjp(const Saved& s, const Grads& dy, Needs) const {
  const Shape& shape = s.input_meta(0).shape;
  if (!dy[0].defined() || shape.rank() == 0) return {dy[0]};
  const int own = normalize_dim(dim, shape.rank(), Op::name);
  return {scatter_zeros(shape[own], own, s.output(1), dy[0])};
}

template <class Op> std::vector<Sample<Op>> Cumextreme<Op>::samples() {
  const std::vector<double> listed{2, 5, -1, 5, 5, -1, 7, -1};
  const auto largest = std::vector<std::vector<double>>{{2, 5, 5, 5, 5, 5, 7, 7},
                                                        {0, 1, 1, 3, 0, 0, 2, 2}},
             smallest = std::vector<std::vector<double>>{{2, 2, -1, -1, 5, -1, -1, -1},
                                                         {0, 0, 2, 2, 0, 1, 1, 3}};
  return {
      {Op{{1}}, {arg({5, 37}).distinct()}},
      {Op{{0}}, {arg({7, 5}).distinct()}},
      {Op{{-2}}, {arg({5, 6, 7}).distinct()}},
      {Op{{0}}, {arg({}).distinct()}},
      {Op{{1}}, {arg({5, 300}).distinct()}},
      known(Op{{1}}, {arg({2, 4}).listed(listed)}, Op::kLargest ? largest : smallest),
      timed(Op{{1}}, {arg({1024, 1024})}),
      timed(Op{{0}}, {arg({1024, 1024})}),
      bad(Op{{2}}, {arg({5, 7})}, "IndexError"),
      bad(Op{{0}}, {arg({5}).as(DType::bool_)}, "DTypeError"),
  };
}

template struct Cumextreme<Cummax>;
template struct Cumextreme<Cummin>;

}  // namespace tessera::op
