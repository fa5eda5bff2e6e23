// SPDX-License-Identifier: Apache-2.0
// gather and scatter_add on CPU: gather element by element, scatter_add line by line in the order
// of the index.
#include "tessera/kernels/gather/gather.h"

#include "tessera/kernels/shared/index_lines_impl.h"
#include "tessera/kernels/shared/strided_copy_impl.h"
#include "tessera/kernels/views/views.h"

#include <atomic>
#include <cstring>

namespace tessera::op {
namespace {

constexpr int64_t kGrain = 16384;

// `x` under the index's shape, standing still along `dim`: what an index moves from.
Tensor still_along(const Tensor& x, const Shape& shape, int dim) {
  Shape strides = x.strides();
  strides[dim] = 0;
  return alias(x, shape, strides, x.offset());
}

}  // namespace

// --- gather -------------------------------------------------------------------------------------------------------

MetaList Gather::meta(Metas in) const {
  check_index(name, dim, in[0], in[1], dtypes);
  return {{in[1].shape, in[0].dtype, in[0].device}};
}

ShardingRule Gather::sharding(Metas in) const {
  const int d = normalize_dim(dim, in[0].shape.rank(), name);
  ShardingRule r;
  const DimFactor m{static_cast<int16_t>(r.add_factor(in[1].shape[d], 'm')), 1};
  return line_rule(in[0].shape, in[1].shape, d, r, {DimFactor{}, m, m}, 2).linear({0});
}

void Gather::cpu(Tensors in, Outputs y) const {
  const Tensor &x = in[0], &index = in[1];
  if (index.numel() == 0) return;
  const int d = normalize_dim(dim, x.rank(), name);
  const Tensor starts = still_along(x, index.shape(), d);
  const LoopNest<3> nest(index.shape(), {&y[0], &index, &starts});
  const int last = nest.shape.rank() - 1;
  const int64_t n = nest.shape[last], rows = index.numel() / n, move = x.strides()[d];
  const int64_t si = nest.strides[1][last], sx = nest.strides[2][last];
  const auto limit = static_cast<uint64_t>(x.shape()[d]);
  if (limit == 0) check_index_range(name, index, 0);
  std::atomic<bool> outside = false;
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    const T* from = x.data<T>();
    T* to = y[0].data<T>();
    const int64_t* indices = index.data<int64_t>();
    const int64_t cuts = rows >= 8 ? 1 : (n + kGrain - 1) / kGrain, piece = (n + cuts - 1) / cuts;
    parallel_for(rows * cuts, std::max<int64_t>(1, kGrain / piece),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t task = begin; task < end; ++task) {
                     const auto at = nest.row_offsets(task / cuts);
                     const int64_t first = task % cuts * piece, count = std::min(piece, n - first);
                     T* row = to + at[0] + first;
                     const int64_t* i = indices + at[1] + first * si;
                     const T* line = from + at[2] + first * sx;
                     // An index outside reads element 0, and is reported after the loop.
                     const auto take = [&](int64_t step, int64_t index_step) {
                       int64_t any = 0;
                       for (int64_t j = 0; j < count; ++j) {
                         const int64_t v = i[j * index_step];
                         const bool fits = static_cast<uint64_t>(v) < limit;
                         any |= static_cast<int64_t>(!fits);
                         row[j] = line[j * step + (fits ? v : 0) * move];
                       }
                       return any;
                     };
                     const auto bad = sx == 0 && si == 1 ? take(0, 1) : take(sx, si);
                     if (bad) outside.store(true, std::memory_order_relaxed);
                   }
                 });
  });
  if (outside) check_index_range(name, index, x.shape()[d]);
}

Grads Gather::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  Grads g(2);
  const Shape& x = s.input_meta(0).shape;
  if (!needs[0]) return g;
  const int d = normalize_dim(dim, x.rank(), name);
  g[0] = scatter_zeros(x[d], d, s.input(1), dy[0]);
  for (int i = 0; i < x.rank(); ++i) {  // what a smaller index does not reach
    if (i != d && g[0].shape()[i] != x[i]) g[0] = call(SlicePad{i, 0, 1, x[i]}, {g[0]});
  }
  return g;
}

std::vector<Sample<Gather>> Gather::samples() {
  return {
      {Gather{1}, {arg({5, 7}), index_arg({5, 6}, 0, 7)}},
      {Gather{0}, {arg({7, 5}), index_arg({9, 5}, 0, 7)}},
      {Gather{-2}, {arg({5, 6, 7}), index_arg({5, 8, 7}, 0, 6)}},
      {Gather{0}, {arg({37}), index_arg({19}, 0, 37)}},
      {Gather{1}, {arg({6, 7, 5}), index_arg({5, 8, 5}, 0, 7)}},
      known(
          Gather{1},
          {arg({2, 3}).listed({1, 2, 3, 4, 5, 6}), arg({2, 2}).listed({2, 0, 1, 1}).as(DType::i64)},
          {{3, 1, 5, 5}}),
      timed(Gather{1}, {arg({1024, 1024}), index_arg({1024, 1024}, 0, 1024)}),
      bad(Gather{1}, {arg({5, 7}), index_arg({5, 2}, 7, 9)}, "IndexError"),
      bad(Gather{1}, {arg({5, 7}), index_arg({6, 2}, 0, 7)}, "ShapeError"),
      bad(Gather{0}, {arg({5, 7}), index_arg({5}, 0, 5)}, "ShapeError"),
      bad(Gather{2}, {arg({5, 7}), index_arg({5, 2}, 0, 7)}, "IndexError"),
      bad(Gather{0}, {arg({5}), arg({5}).as(DType::f32)}, "DTypeError"),
      bad(Gather{0}, {arg({5}).as(DType::bool_), index_arg({5}, 0, 5)}, "DTypeError"),
  };
}

// --- scatter_add --------------------------------------------------------------------------------------------------

namespace {

// What is added to, given or not.
TensorMeta target_of(const ScatterAdd& op, Metas in) {
  if (in.has(0)) return in[0];
  TensorMeta x = in[2];
  if (x.shape.rank() > 0) x.shape[normalize_dim(op.dim, x.shape.rank(), op.name)] = op.size;
  return x;
}

}  // namespace

MetaList ScatterAdd::meta(Metas in) const {
  if (size < 0 || (in.has(0) && size != 0)) {
    fail<ValueError>(
        name, "size ", size, " for src ", in[2],
        in.has(0) ? " and a given input: expected 0, the input's own" : ": expected 0 or more");
  }
  const TensorMeta x = target_of(*this, in);
  check_index(name, dim, x, in[1], dtypes);
  if (in[2].dtype != x.dtype)
    fail<DTypeError>(name, "input and src must share one dtype: given ", x, " and ", in[2]);
  if (!(in[2].shape == in[1].shape))
    fail<ShapeError>(name, "src must have the index's shape: given src ", in[2], " and index ",
                     in[1]);
  return {x};
}

ShardingRule ScatterAdd::sharding(Metas in) const {
  // Cutting the index along `dim` would add a given x once per piece; cutting x would need indices
  // of the piece.
  const Shape shape = target_of(*this, in).shape;
  const int d = normalize_dim(dim, shape.rank(), name);
  ShardingRule r;
  const DimFactor n{static_cast<int16_t>(r.add_factor(shape[d], 'n')), 1};
  const DimFactor m{static_cast<int16_t>(r.add_factor(in[1].shape[d], 'm')), 1};
  r.replicate(in.has(0) ? "n m" : "n");
  r = line_rule(shape, in[1].shape, d, r, {n, m, m, n}, 3, in.has(0) ? -1 : 0);
  return in.has(0) ? r.linear({0, 2}) : r.linear({2});
}

void ScatterAdd::cpu(Tensors in, Outputs y) const {
  const Tensor &index = in[1], &src = in[2];
  const Shape& shape = y[0].shape();
  const int d = normalize_dim(dim, shape.rank(), name);
  check_index_range(name, index, shape[d]);
  const auto bytes = static_cast<size_t>(y[0].numel() * item_size(y[0].dtype()));
  if (in[0].defined()) strided_copy(y[0], in[0]);
  else if (bytes > 0) std::memset(y[0].raw_data(), 0, bytes);
  if (index.numel() == 0) return;
  // Narrow floats are summed in f32 and rounded once.
  const bool narrow = item_size(src.dtype()) < 4;
  const Tensor sums = narrow ? empty(shape, DType::f32) : y[0];
  dispatch<dtypes>(src.dtype(), [&]<class T>() {
    using A = compute_t<T>;
    A* to = sums.data<A>();
    T* out = y[0].data<T>();
    const int64_t total = y[0].numel();
    const auto convert = [&](auto* target, const auto* source) {
      parallel_for(total, kGrain, [target, source](int64_t begin, int64_t end) {
        using To = std::remove_pointer_t<decltype(target)>;
        using From = std::remove_cv_t<std::remove_pointer_t<decltype(source)>>;
        simd([&]() TESSERA_LAMBDA {
#pragma GCC ivdep
          for (int64_t i = begin; i < end; ++i)
            target[i] = static_cast<To>(static_cast<compute_t<From>>(source[i]));
        });
      });
    };
    if (narrow) convert(to, out);
    const int64_t* indices = index.data<int64_t>();
    const T* from = src.data<T>();
    const int64_t move = sums.strides()[d];
    IndexLines(sums, index, src, d).each([=](int64_t line, int64_t i, int64_t j) TESSERA_LAMBDA {
      A& sum = to[line + indices[i] * move];
      const T v = from[j];
      if constexpr (is_floating(dtype_of<A>)) sum += static_cast<A>(v);
      else sum = static_cast<A>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(v));
    });
    if (narrow) convert(out, to);
  });
}

Grads ScatterAdd::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  Grads g(3);
  if (needs[0]) g[0] = dy[0];
  if (needs[2]) g[2] = gather(dy[0], dim, s.input(1));
  return g;
}

std::vector<Sample<ScatterAdd>> ScatterAdd::samples() {
  // A long index, each place of a line elsewhere.
  std::vector<double> apart(40);
  for (size_t j = 0; j < apart.size(); ++j) apart[j] = static_cast<double>(j * 7 % 48);
  return {
      {ScatterAdd{1, 0}, {arg({5, 7}), index_arg({5, 6}, 0, 7), arg({5, 6})}},
      {ScatterAdd{0, 0}, {arg({7, 5}), index_arg({9, 5}, 0, 7), arg({9, 5})}},
      {ScatterAdd{-2, 0}, {arg({5, 6, 7}), index_arg({5, 8, 7}, 0, 6), arg({5, 8, 7})}},
      {ScatterAdd{0, 0}, {arg({19}), index_arg({37}, 0, 19), arg({37})}},
      {ScatterAdd{1, 0}, {arg({6, 7, 5}), index_arg({5, 8, 5}, 0, 7), arg({5, 8, 5})}},
      {ScatterAdd{1, 7}, {no_arg(), index_arg({5, 6}, 0, 7), arg({5, 6})}},
      {ScatterAdd{-2, 6}, {no_arg(), index_arg({5, 8, 7}, 0, 6), arg({5, 8, 7})}},
      {ScatterAdd{1, 0}, {arg({5, 6}), index_arg({5, 70}, 0, 6), arg({5, 70})}},
      {ScatterAdd{0, 0}, {arg({5, 9}), index_arg({37, 7}, 0, 5), arg({37, 7})}},
      {ScatterAdd{1, 5}, {no_arg(), index_arg({3, 37, 5}, 0, 5), arg({3, 37, 5})}},
      {ScatterAdd{1, 48}, {no_arg(), arg({8, 40}).listed(apart).as(DType::i64), arg({8, 40})}},
      known(ScatterAdd{1, 0},
            {arg({2, 3}).listed({1, 2, 3, 4, 5, 6}),
             arg({2, 2}).listed({2, 0, 1, 1}).as(DType::i64), arg({2, 2}).listed({10, 20, 30, 40})},
            {{21, 2, 13, 4, 75, 6}}),
      known(ScatterAdd{0, 3},
            {no_arg(), arg({2, 2}).listed({2, 0, 1, 0}).as(DType::i64),
             arg({2, 2}).listed({1, 2, 3, 4})},
            {{0, 6, 3, 0, 1, 0}}),
      timed(ScatterAdd{1, 0},
            {arg({1024, 1024}), index_arg({1024, 1024}, 0, 1024), arg({1024, 1024})}),
      bad(ScatterAdd{1, 0}, {arg({5, 7}), index_arg({5, 2}, 7, 9), arg({5, 2})}, "IndexError"),
      bad(ScatterAdd{1, 0}, {arg({5, 7}), index_arg({6, 2}, 0, 7), arg({6, 2})}, "ShapeError"),
      bad(ScatterAdd{1, 0}, {arg({5, 7}), index_arg({5, 2}, 0, 7), arg({5, 3})}, "ShapeError"),
      bad(ScatterAdd{1, 7}, {no_arg(), index_arg({5, 2}, 7, 9), arg({5, 2})}, "IndexError"),
      bad(ScatterAdd{1, 7}, {arg({5, 7}), index_arg({5, 2}, 0, 7), arg({5, 2})}, "ValueError"),
      bad(ScatterAdd{1, -1}, {no_arg(), index_arg({5, 2}, 0, 7), arg({5, 2})}, "ValueError"),
      bad(ScatterAdd{0, 0}, {arg({5}), index_arg({5}, 0, 5), arg({5}).as(DType::bool_)},
          "DTypeError"),
      bad(ScatterAdd{0, 0}, {arg({5}), arg({5}).as(DType::f32), arg({5})}, "DTypeError"),
  };
}

}  // namespace tessera::op

namespace tessera {
namespace {

// A tensor without dims counts as one of one element.
Tensor one_dim(const Tensor& x) { return x.rank() == 0 ? reshape(x, {1}) : x; }

}  // namespace

Tensor gather(const Tensor& x, int dim, const Tensor& index) {
  if (x.rank() == 0 && index.rank() == 0)
    return reshape(gather(one_dim(x), dim, one_dim(index)), {});
  return call(op::Gather{dim}, {x, as_index(index)});
}

Tensor detail::first_elements(const Tensor& x, const Shape& shape) {
  bool fits = x.rank() == shape.rank();
  for (int d = 0; fits && d < shape.rank(); ++d) fits = shape[d] <= x.shape()[d];
  Tensor y = x;
  for (int d = 0; fits && d < shape.rank(); ++d) {
    if (shape[d] < x.shape()[d]) y = narrow(y, d, 0, shape[d]);
  }
  return y;
}

Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& src) {
  if (x.rank() == 0 && index.rank() == 0 && src.rank() == 0)
    return reshape(scatter_add(one_dim(x), dim, one_dim(index), one_dim(src)), {});
  return call(op::ScatterAdd{dim, 0},
              {x, as_index(index), detail::first_elements(src, index.shape())});
}

}  // namespace tessera
