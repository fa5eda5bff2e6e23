// SPDX-License-Identifier: Apache-2.0
// max and min with their index on CPU: the value first, by lanes, then where it stands.
#include "tessera/kernels/gather/gather.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/reduce/reduce_family_impl.h"

namespace tessera::op {
namespace {

template <class A> TESSERA_INLINE bool is_nan(A x) {
  if constexpr (std::is_floating_point_v<A>) return x != x;
  else return false;
}

template <bool kLargest, class A> TESSERA_INLINE bool beats(A v, A best) {
  return kLargest ? v > best : v < best;
}

// The index of the first largest (smallest) element of a row.
template <bool kLargest, class T, class A = compute_t<T>>
int64_t first_extreme(const T* x, int64_t n, int64_t stride) {
  constexpr int64_t kLanes = detail::kReduceLanes<A>;
  int64_t at = 0;
  const auto run = [&]<bool kUnit>() {
    simd([&]() TESSERA_LAMBDA {
      const auto read = [&](int64_t i)
                            TESSERA_LAMBDA { return static_cast<A>(x[kUnit ? i : i * stride]); };
      A lanes[kLanes];
      for (int64_t j = 0; j < kLanes; ++j) lanes[j] = read(j < n ? j : 0);
      int64_t i = kLanes;
      for (; i + kLanes <= n; i += kLanes) {
        for (int64_t j = 0; j < kLanes; ++j) {
          const A v = read(i + j);
          lanes[j] = beats<kLargest>(v, lanes[j]) | is_nan(v) ? v : lanes[j];
        }
      }
      A best = lanes[0];
      for (int64_t j = 1; j < kLanes; ++j)
        best = beats<kLargest>(lanes[j], best) | is_nan(lanes[j]) ? lanes[j] : best;
      for (; i < n; ++i) {
        const A v = read(i);
        best = beats<kLargest>(v, best) | is_nan(v) ? v : best;
      }
      // Whole blocks are searched at once; the loop that leaves early runs in the last one alone.
      const bool nan = is_nan(best);
      const auto is_best = [&](A v) TESSERA_LAMBDA { return (v == best) | (nan & is_nan(v)); };
      for (i = 0; i + kLanes <= n; i += kLanes) {
        int found = 0;
        for (int64_t j = 0; j < kLanes; ++j) found |= is_best(read(i + j));
        if (found) break;
      }
      while (i < n - 1 && !is_best(read(i))) ++i;
      at = i;
    });
  };
  stride == 1 ? run.template operator()<true>() : run.template operator()<false>();
  return at;
}

constexpr int64_t kColumns = 256;  // in one go: few, so that threads share out a narrow matrix

// The same for `columns` columns at once. Index holds n; the narrower, the more of them at a time.
template <bool kLargest, class Index, class T, class A = compute_t<T>>
void first_extreme_of_columns(const T* x, int64_t n, int64_t row_stride, int64_t columns,
                              int64_t stride, int64_t* at) {
  A best[kColumns];
  Index place[kColumns] = {};
  for (int64_t j = 0; j < columns; ++j) best[j] = static_cast<A>(x[j * stride]);
  const auto run = [&]<bool kUnit>() TESSERA_LAMBDA {
    for (int64_t r = 1; r < n; ++r) {
      const T* row = x + r * row_stride;
      const auto here = static_cast<Index>(r);
      for (int64_t j = 0; j < columns; ++j) {
        const A v = static_cast<A>(row[kUnit ? j : j * stride]);
        const bool better = beats<kLargest>(v, best[j]) | (is_nan(v) & !is_nan(best[j]));
        best[j] = better ? v : best[j];
        place[j] = better ? here : place[j];
      }
    }
  };
  if (stride == 1) simd([&]() TESSERA_LAMBDA { run.template operator()<true>(); });
  else run.template operator()<false>();
  for (int64_t j = 0; j < columns; ++j) at[j] = place[j];
}

}  // namespace

template <class Op> MetaList Extreme<Op>::meta(Metas in) const {
  const TensorMeta& x = in[0];
  if (!dtypes.has(x.dtype))
    fail<DTypeError>(Op::name, "the input must be of ", dtypes, ": given ", x, "; cast it");
  const int d = normalize_dim(dim, x.shape.rank(), Op::name);
  if (x.shape.rank() > 0 && x.shape[d] == 0) {
    fail<ShapeError>(Op::name, "dim ", dim, " is empty and has no extreme element: given ", x,
                     ", expected a size above 0");
  }
  const Shape out = kept_shape(x.shape, 1u << d, keepdim);
  return {{out, x.dtype, x.device}, {out, DType::i64, x.device}};
}

template <class Op> ShardingRule Extreme<Op>::sharding(Metas in) const {
  const Shape& shape = in[0].shape;
  const DimMask dims = 1u << normalize_dim(dim, shape.rank(), Op::name);
  return reduce_rule(shape, dims, keepdim, 2, true);
}

template <class Op> void Extreme<Op>::cpu(Tensors in, Outputs y) const {
  const Tensor& x = in[0];
  if (y[0].numel() == 0) return;
  const int d = normalize_dim(dim, x.rank(), Op::name);
  const ReducePlan plan(x, 1u << d);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    const T* from = x.data<T>();
    T* values = y[0].data<T>();
    int64_t* indices = y[1].data<int64_t>();
    const int64_t n = x.rank() > 0 ? x.shape()[d] : 1, stride = x.rank() > 0 ? x.strides()[d] : 1;
    if (!plan.inner_kept) {
      parallel_for(plan.kept_size, std::max<int64_t>(1, detail::kReduceChunk / 2 / n),
                   [&](int64_t begin, int64_t end) {
                     ReduceWalk at(plan.kept, plan.kept_count, begin);
                     for (int64_t k = begin; k < end; ++k, at.next()) {
                       const T* row = from + at.offset;
                       indices[at.out] = first_extreme<Op::kLargest>(row, n, stride);
                       values[at.out] = row[indices[at.out] * stride];
                     }
                   });
      return;
    }
    const int64_t size = plan.inner.size, blocks = (size + kColumns - 1) / kColumns;
    const int64_t work = std::min(size, kColumns) * n;
    const bool narrow = sizeof(compute_t<T>) == 4 && n <= std::numeric_limits<int32_t>::max();
    const auto extremes = narrow ? first_extreme_of_columns<Op::kLargest, int32_t, T>
                                 : first_extreme_of_columns<Op::kLargest, int64_t, T>;
    parallel_for(plan.kept_size * blocks, std::max<int64_t>(1, detail::kReduceChunk / 2 / work),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t task = begin; task < end; ++task) {
                     const ReduceWalk at(plan.kept, plan.kept_count, task / blocks);
                     const int64_t column = task % blocks * kColumns,
                                   columns = std::min(size - column, kColumns);
                     const T* base = from + at.offset + column * plan.inner.stride;
                     int64_t index[kColumns];
                     extremes(base, n, stride, columns, plan.inner.stride, index);
                     for (int64_t j = 0; j < columns; ++j) {
                       const int64_t o = at.out + (column + j) * plan.inner.out;
                       indices[o] = index[j];
                       values[o] = base[j * plan.inner.stride + index[j] * stride];
                     }
                   }
                 });
  });
}

template <class Op> Grads Extreme<Op>::vjp(const Saved& s, const Grads& dy, Needs) const {
  if (!dy[0].defined()) return Grads(1);
  const TensorMeta& x = s.input_meta(0);
  if (x.shape.rank() == 0) return {dy[0]};
  const int d = normalize_dim(dim, x.shape.rank(), Op::name);
  const Shape kept = kept_shape(x.shape, 1u << d, true);
  return {scatter_zeros(x.shape[d], d, reshape(s.output(1), kept), reshape(dy[0], kept))};
}

template <class Op> std::vector<Sample<Op>> Extreme<Op>::samples() {
  return {
      {Op{{-1, false}}, {arg({5, 37}).distinct()}},
      {Op{{0, true}}, {arg({7, 5}).distinct()}},
      {Op{{1, false}}, {arg({5, 6, 7}).distinct()}},
      {Op{{-2, true}}, {arg({5, 6, 2}).distinct()}},
      {Op{{-1, false}}, {arg({}).distinct()}},
      known(Op{{1, false}}, {arg({2, 4}).listed({3, 1, 5, 1, 2, 6, 6, 4})},
            Op::kLargest ? std::vector<std::vector<double>>{{5, 6}, {2, 1}}
                         : std::vector<std::vector<double>>{{1, 2}, {1, 0}}),
      timed(Op{{-1, false}}, {arg({1024, 1024})}),
      timed(Op{{0, false}}, {arg({1024, 1024})}),
      bad(Op{{2, false}}, {arg({3, 4})}, "IndexError"),
      bad(Op{{1, false}}, {arg({3, 0})}, "ShapeError"),
      bad(Op{{0, false}}, {arg({3}).as(DType::bool_)}, "DTypeError"),
  };
}

template struct Extreme<Max>;
template struct Extreme<Min>;

}  // namespace tessera::op

namespace tessera {

Tensor argmax(const Tensor& x) { return argmax(reshape(x, {-1}), 0); }
Tensor argmin(const Tensor& x) { return argmin(reshape(x, {-1}), 0); }

}  // namespace tessera
