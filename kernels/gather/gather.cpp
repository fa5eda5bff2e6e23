// SPDX-License-Identifier: Apache-2.0
// gather and scatter_add on CPU. Lines along `dim` are independent of each other, so threads share
// them out; within a line scatter_add goes in index order.
#include "tessera/kernels/gather/gather.h"

#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/shared/strided_copy_impl.h"

#include <atomic>
#include <cstring>

namespace tessera::op {
namespace {

// Shapes: index and `like` are equal but for `dim`.
int check_operands(std::string_view name, int dim, const TensorMeta& x, const TensorMeta& index,
                   DTypeSet dtypes) {
  if (!dtypes.has(x.dtype)) fail<DTypeError>(name, "the input must be of ", dtypes, ": given ", x);
  if (index.dtype != DType::i64)
    fail<DTypeError>(name, "the index must be i64: given ", index, "; cast it");
  const int d = normalize_dim(dim, x.shape.rank(), name);
  bool fits = x.shape.rank() > 0 && index.shape.rank() == x.shape.rank();
  for (int i = 0; fits && i < x.shape.rank(); ++i) fits = i == d || index.shape[i] == x.shape[i];
  if (!fits)
    fail<ShapeError>(name, "input and index must have equal shapes but for dim ", dim, ": given ",
                     x, " and ", index);
  return d;
}

// Every dim but `dim` is one factor of all operands; `along` gives the factor of `dim` in each
// operand. `left_out`: an optional input that is not given.
ShardingRule line_rule(const Shape& shape, int dim, ShardingRule r,
                       std::initializer_list<DimFactor> along, size_t inputs, int left_out = -1) {
  std::vector<SmallVector<DimFactor, kMaxRank>> operands(along.size());
  for (int d = 0; d < shape.rank(); ++d) {
    const DimFactor f =
        d == dim ? DimFactor{} : DimFactor{static_cast<int16_t>(r.add_factor(shape[d])), 1};
    for (size_t o = 0; o < operands.size(); ++o)
      operands[o].push_back(d == dim ? along.begin()[o] : f);
  }
  for (size_t o = 0; o < operands.size(); ++o) {
    if (o == inputs) r.outputs_from_here();
    if (static_cast<int>(o) == left_out) operands[o].clear();
    r.operand(operands[o]);
  }
  return r;
}

constexpr int64_t kGrain = 16384;

// Throws before anything is written.
void check_range(std::string_view name, const Tensor& index, int64_t size) {
  const LoopNest<1> nest(index.shape(), {&index});
  const int last = nest.shape.rank() - 1;
  const int64_t n = nest.shape[last], rows = index.numel() / n, stride = nest.strides[0][last];
  const auto limit = static_cast<uint64_t>(size);
  const int64_t cuts = (n + kGrain - 1) / kGrain, piece = (n + cuts - 1) / cuts;
  std::atomic<bool> outside = false;
  parallel_for(rows * cuts, std::max<int64_t>(1, kGrain / piece), [&](int64_t begin, int64_t end) {
    simd([&]() TESSERA_LAMBDA {
      int64_t any = 0;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t* at = index.data<int64_t>() + nest.row_offsets(task / cuts)[0];
        const int64_t first = task % cuts * piece, stop = std::min(n, first + piece);
        for (int64_t i = first; i < stop; ++i)
          any |= static_cast<int64_t>(static_cast<uint64_t>(at[i * stride]) >= limit);
      }
      if (any) outside.store(true, std::memory_order_relaxed);
    });
  });
  for (int64_t row = 0; outside && row < rows; ++row) {  // the first one
    const int64_t* at = index.data<int64_t>() + nest.row_offsets(row)[0];
    for (int64_t i = 0; i < n; ++i) {
      if (static_cast<uint64_t>(at[i * stride]) < limit) continue;
      fail<IndexError>(name, "index ", at[i * stride], " at position ", row * n + i,
                       " (row-major) of ", index.meta(), " is out of range: expected 0 to ",
                       size - 1);
    }
  }
}

// `x` under the index's shape, standing still along `dim`: what an index moves from.
Tensor line_starts(const Tensor& x, const Shape& shape, int dim) {
  Shape strides = x.strides();
  strides[dim] = 0;
  return alias(x, shape, strides, x.offset());
}

}  // namespace

// --- gather -------------------------------------------------------------------------------------------------------

MetaList Gather::meta(Metas in) const {
  check_operands(name, dim, in[0], in[1], dtypes);
  return {{in[1].shape, in[0].dtype, in[0].device}};
}

ShardingRule Gather::sharding(Metas in) const {
  const int d = normalize_dim(dim, in[0].shape.rank(), name);
  ShardingRule r;
  const DimFactor m{static_cast<int16_t>(r.add_factor(in[1].shape[d], 'm')), 1};
  return line_rule(in[0].shape, d, r, {DimFactor{}, m, m}, 2).linear({0});
}

void Gather::cpu(Tensors in, Outputs y) const {
  const Tensor &x = in[0], &index = in[1];
  if (index.numel() == 0) return;
  const int d = normalize_dim(dim, x.rank(), name);
  const Tensor starts = line_starts(x, index.shape(), d);
  const LoopNest<3> nest(index.shape(), {&y[0], &index, &starts});
  const int last = nest.shape.rank() - 1;
  const int64_t n = nest.shape[last], rows = index.numel() / n, move = x.strides()[d];
  const int64_t si = nest.strides[1][last], sx = nest.strides[2][last];
  const auto limit = static_cast<uint64_t>(x.shape()[d]);
  if (limit == 0) check_range(name, index, 0);
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
  if (outside) check_range(name, index, x.shape()[d]);
}

Grads Gather::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  Grads g(2);
  const Shape& x = s.input_meta(0).shape;
  if (needs[0]) g[0] = scatter_zeros(x[normalize_dim(dim, x.rank(), name)], dim, s.input(1), dy[0]);
  return g;
}

std::vector<Sample<Gather>> Gather::samples() {
  return {
      {Gather{1}, {arg({5, 7}), index_arg({5, 6}, 0, 7)}},
      {Gather{0}, {arg({7, 5}), index_arg({9, 5}, 0, 7)}},
      {Gather{-2}, {arg({5, 6, 7}), index_arg({5, 8, 7}, 0, 6)}},
      {Gather{0}, {arg({37}), index_arg({19}, 0, 37)}},
      timed(Gather{1}, {arg({1024, 1024}), index_arg({1024, 1024}, 0, 1024)}),
      bad(Gather{1}, {arg({5, 7}), index_arg({5, 2}, 7, 9)}, "IndexError"),
      bad(Gather{1}, {arg({5, 7}), index_arg({4, 2}, 0, 7)}, "ShapeError"),
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
  check_operands(name, dim, x, in[1], dtypes);
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
  r = line_rule(shape, d, r, {n, m, m, n}, 3, in.has(0) ? -1 : 0);
  return in.has(0) ? r.linear({0, 2}) : r.linear({2});
}

void ScatterAdd::cpu(Tensors in, Outputs y) const {
  const Tensor &index = in[1], &src = in[2];
  const Shape& shape = y[0].shape();
  const int d = normalize_dim(dim, shape.rank(), name);
  if (index.numel() > 0) check_range(name, index, shape[d]);
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
    // Lines with different places outside `dim` are disjoint: blocks of columns and rows are shared
    // out.
    int64_t inner = 1;
    for (int i = d + 1; i < shape.rank(); ++i) inner *= index.shape()[i];
    const int64_t m = index.shape()[d], n = shape[d], outer = index.numel() / inner / m;
    const Tensor i_rows = row_major(index), s_rows = row_major(src);
    const int64_t* indices = i_rows.data<int64_t>();
    const T* from = s_rows.data<T>();
    const int64_t width = std::min<int64_t>(inner, 512), blocks = (inner + width - 1) / width;
    parallel_for(outer * blocks, std::max<int64_t>(1, kGrain / (width * m)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t task = begin; task < end; ++task) {
                     const int64_t o = task / blocks, first = task % blocks * width,
                                   last = std::min(inner, first + width);
                     const auto add = [](A& sum, T v) {
                       if constexpr (is_floating(dtype_of<A>)) sum += static_cast<A>(v);
                       else
                         sum =
                             static_cast<A>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(v));
                     };
                     if (inner == 1) {
                       A* line = to + o * n;
                       const int64_t* at = indices + o * m;
                       const T* values = from + o * m;
                       for (int64_t j = 0; j < m; ++j) add(line[at[j]], values[j]);
                       continue;
                     }
                     for (int64_t j = 0; j < m; ++j) {
                       const int64_t row = (o * m + j) * inner;
                       for (int64_t c = first; c < last; ++c) {
                         add(to[(o * n + indices[row + c]) * inner + c], from[row + c]);
                       }
                     }
                   }
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
  return {
      {ScatterAdd{1, 0}, {arg({5, 7}), index_arg({5, 6}, 0, 7), arg({5, 6})}},
      {ScatterAdd{0, 0}, {arg({7, 5}), index_arg({9, 5}, 0, 7), arg({9, 5})}},
      {ScatterAdd{-2, 0}, {arg({5, 6, 7}), index_arg({5, 8, 7}, 0, 6), arg({5, 8, 7})}},
      {ScatterAdd{0, 0}, {arg({19}), index_arg({37}, 0, 19), arg({37})}},
      {ScatterAdd{1, 7}, {no_arg(), index_arg({5, 6}, 0, 7), arg({5, 6})}},
      {ScatterAdd{-2, 6}, {no_arg(), index_arg({5, 8, 7}, 0, 6), arg({5, 8, 7})}},
      timed(ScatterAdd{1, 0},
            {arg({1024, 1024}), index_arg({1024, 1024}, 0, 1024), arg({1024, 1024})}),
      bad(ScatterAdd{1, 0}, {arg({5, 7}), index_arg({5, 2}, 7, 9), arg({5, 2})}, "IndexError"),
      bad(ScatterAdd{1, 0}, {arg({5, 7}), index_arg({4, 2}, 0, 7), arg({4, 2})}, "ShapeError"),
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
