// SPDX-License-Identifier: Apache-2.0
// topk on CPU. A few are kept in order while the row is read, most of which is skipped a block at a
// time; many are selected and then sorted.
#include "tessera/kernels/topk/topk.h"

#include "tessera/core/parallel.h"
#include "tessera/kernels/gather/gather.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/shared/loop_nest_impl.h"

#include <algorithm>
#include <numeric>

namespace tessera::op {
namespace {

constexpr int64_t kFew = 128;
constexpr int64_t kBlock = 32;  // passed over at once where no element is good enough

// NaN counts as largest.
template <class A> TESSERA_INLINE bool larger(A a, A b) {
  if constexpr (std::is_floating_point_v<A>) return (a > b) | ((a != a) & (b == b));
  else return a > b;
}

// Whether a comes before b among the largest, or among the smallest.
template <bool kLargest, class A> TESSERA_INLINE bool better(A a, A b) {
  return kLargest ? larger(a, b) : larger(b, a);
}

// The first block of the row, from i on, that holds an element better than `last`.
template <bool kLargest, class T, class A = compute_t<T>>
int64_t skip_worse(const T* x, int64_t i, int64_t n, int64_t stride, A last) {
  if (stride != 1) return i;
  simd([&]() TESSERA_LAMBDA {
    for (; i + kBlock <= n; i += kBlock) {
      int any = 0;
      for (int64_t j = 0; j < kBlock; ++j) any |= better<kLargest>(static_cast<A>(x[i + j]), last);
      if (any) break;
    }
  });
  return i;
}

// The first `k` <= kFew of the row in order, as indices into it. Equal elements keep their order.
template <bool kLargest, class T, class A = compute_t<T>>
void select_few(const T* x, int64_t n, int64_t stride, int64_t k, A* values, int64_t* indices) {
  int64_t held = 0;
  const auto insert = [&](int64_t i, A v) {
    int64_t at = held < k ? held++ : k - 1;
    for (; at > 0 && better<kLargest>(v, values[at - 1]); --at) {
      values[at] = values[at - 1];
      indices[at] = indices[at - 1];
    }
    values[at] = v;
    indices[at] = i;
  };
  int64_t i = 0;
  for (; i < n && held < k; ++i) insert(i, static_cast<A>(x[i * stride]));
  while (i < n) {
    i = skip_worse<kLargest>(x, i, n, stride, values[k - 1]);
    for (const int64_t end = std::min(n, i + kBlock); i < end; ++i) {
      const A v = static_cast<A>(x[i * stride]);
      if (better<kLargest>(v, values[k - 1])) insert(i, v);
    }
  }
}

// The same for many, by a heap of the best so far; by selection where most of the row is wanted.
// `order` has room for n.
template <bool kLargest, class T, class A = compute_t<T>>
void select_many(const T* x, int64_t n, int64_t stride, int64_t k, int64_t* order) {
  const auto before = [&](int64_t a, int64_t b) {
    const A u = static_cast<A>(x[a * stride]), v = static_cast<A>(x[b * stride]);
    return better<kLargest>(u, v) || (!better<kLargest>(v, u) && a < b);
  };
  if (8 * k > n) {
    std::iota(order, order + n, int64_t{0});
    if (k < n) std::nth_element(order, order + k, order + n, before);
    std::sort(order, order + k, before);
    return;
  }
  std::iota(order, order + k, int64_t{0});
  std::make_heap(order, order + k, before);  // the last of them is in front
  for (int64_t i = k; i < n;) {
    i = skip_worse<kLargest>(x, i, n, stride, static_cast<A>(x[order[0] * stride]));
    for (const int64_t end = std::min(n, i + kBlock); i < end; ++i) {
      const A v = static_cast<A>(x[i * stride]);
      if (!better<kLargest>(v, static_cast<A>(x[order[0] * stride]))) continue;
      std::pop_heap(order, order + k, before);
      order[k - 1] = i;
      std::push_heap(order, order + k, before);
    }
  }
  std::sort_heap(order, order + k, before);
}

int own_dim(const TopK& op, const Shape& shape) {
  return normalize_dim(op.dim, shape.rank(), TopK::name);
}

}  // namespace

MetaList TopK::meta(Metas in) const {
  const TensorMeta& x = in[0];
  if (!dtypes.has(x.dtype))
    fail<DTypeError>(name, "the input must be of ", dtypes, ": given ", x, "; cast it");
  const int d = own_dim(*this, x.shape);
  const int64_t size = x.shape.rank() ? x.shape[d] : 1;
  if (k < 0 || k > size)
    fail<ShapeError>(name, "k must be 0 to the size of dim ", dim, " (", size, "): given k = ", k,
                     " for ", x);
  Shape out = x.shape;
  if (out.rank() == 0) out.push_back(k);
  out[d] = k;
  return {{out, x.dtype, x.device}, {out, DType::i64, x.device}};
}

ShardingRule TopK::sharding(Metas in) const {
  const Shape& shape = in[0].shape;
  const int d = own_dim(*this, shape);
  ShardingRule r;
  SmallVector<DimFactor, kMaxRank> dims;
  for (int i = 0; i < shape.rank(); ++i) {
    dims.push_back(i == d ? DimFactor{}
                          : DimFactor{static_cast<int16_t>(r.add_factor(shape[i])), 1});
  }
  r.operand(dims).outputs_from_here();
  if (shape.rank() == 0) dims.push_back({});
  return r.operand(dims).operand(dims);
}

void TopK::cpu(Tensors in, Outputs y) const {
  const Tensor& x = in[0];
  if (y[0].numel() == 0) return;
  const int d = own_dim(*this, x.shape());
  const int64_t n = x.rank() ? x.shape()[d] : 1, stride = x.rank() ? x.strides()[d] : 1;
  const int64_t out_stride = y[0].strides()[d];
  // Rows of x and of the outputs, `dim` left out.
  const Shape row_shape = x.shape().without(d);
  const Tensor x_rows = alias(x, row_shape, x.strides().without(d), x.offset());
  const Tensor y_rows = alias(y[0], row_shape, y[0].strides().without(d), y[0].offset());
  const LoopNest<2> nest(row_shape, {&x_rows, &y_rows});
  const int64_t last = nest.shape.rank() - 1, columns = nest.shape.back(), rows = y[0].numel() / k;
  // One task takes many rows, so that its scratch is made before the threads start.
  const bool few = k <= kFew;
  const int64_t grain = few ? std::max<int64_t>(1, 8192 / n)
                            : std::max<int64_t>(1, std::max(8192 / n, (rows + 31) / 32));
  const Tensor scratch = few ? Tensor() : empty({(rows + grain - 1) / grain, n}, DType::i64);
  int64_t* orders = few ? nullptr : scratch.data<int64_t>();
  const auto select = [&]<bool kLargest, class T>() {
    const T* from = x.data<T>();
    T* values = y[0].data<T>();
    int64_t* indices = y[1].data<int64_t>();
    parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
      compute_t<T> kept[kFew];
      int64_t kept_order[kFew];
      int64_t* order = few ? kept_order : orders + begin / grain * n;
      for (int64_t row = begin; row < end; ++row) {
        const auto at = nest.row_offsets(row / columns);
        const int64_t column = row % columns;
        const T* line = from + at[0] + column * nest.strides[0][static_cast<int>(last)];
        const int64_t out = at[1] + column * nest.strides[1][static_cast<int>(last)];
        few ? select_few<kLargest>(line, n, stride, k, kept, order)
            : select_many<kLargest>(line, n, stride, k, order);
        for (int64_t j = 0; j < k; ++j) {
          values[out + j * out_stride] = line[order[j] * stride];
          indices[out + j * out_stride] = order[j];
        }
      }
    });
  };
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    largest ? select.template operator()<true, T>() : select.template operator()<false, T>();
  });
}

Grads TopK::vjp(const Saved& s, const Grads& dy, Needs) const {
  if (!dy[0].defined()) return Grads(1);
  const TensorMeta& x = s.input_meta(0);
  if (x.shape.rank() == 0) return {sum_to(dy[0], x.shape)};
  return {scatter_zeros(x.shape[own_dim(*this, x.shape)], dim, s.output(1), dy[0])};
}

std::vector<Sample<TopK>> TopK::samples() {
  std::vector<double> late(300);  // its largest element comes after the first of each thread
  late[0] = 40, late[256] = 50;
  return {
      {TopK{3, -1}, {arg({5, 37}).distinct()}},
      {TopK{2, 0}, {arg({7, 5}).distinct()}},
      {TopK{4, 1}, {arg({5, 6, 7}).distinct()}},
      {TopK{130, -1}, {arg({5, 150}).distinct()}},
      {TopK{3, -1, false}, {arg({5, 37}).distinct()}},
      {TopK{131, 0, false}, {arg({150, 5}).distinct()}},
      {TopK{2, -1}, {arg({3, 300}).listed(late)}},
      known(TopK{2, -1}, {arg({2, 4}).listed({3, 1, 4, 2, 5, 9, 2, 6})},
            {{4, 3, 9, 6}, {2, 0, 1, 3}}),
      known(TopK{1, 0, false}, {arg({3, 2}).listed({3, 1, 4, 2, 0, 5})}, {{0, 1}, {2, 0}}),
      timed(TopK{8, -1}, {arg({4096, 128})}),
      timed(TopK{50, -1}, {arg({16, 32768})}),
      bad(TopK{8, -1}, {arg({5, 7})}, "ShapeError"),
      bad(TopK{-1, -1}, {arg({5, 7})}, "ShapeError"),
      bad(TopK{1, 2}, {arg({5, 7})}, "IndexError"),
      bad(TopK{1, 0}, {arg({5}).as(DType::bool_)}, "DTypeError"),
  };
}

}  // namespace tessera::op
