// SPDX-License-Identifier: Apache-2.0
// Meta, sharding, gradients, samples and CPU kernels of the reduce family.
#include "tessera/kernels/reduce/reduce.h"

#include "tessera/kernels/gather/gather.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce_loops_impl.h"
#include "tessera/kernels/views/views.h"

#include <limits>

namespace tessera::op {
namespace {

bool reduced(DimMask dims, int d) { return dims >> d & 1; }

Shape kept_shape(const Shape& in, DimMask dims, bool keepdim) {
  Shape out;
  for (int d = 0; d < in.rank(); ++d) {
    if (!reduced(dims, d)) out.push_back(in[d]);
    else if (keepdim) out.push_back(1);
  }
  return out;
}

// Every dim of the input is a factor; the reduced ones leave the outputs.
ShardingRule reduce_rule(const Shape& in, DimMask dims, bool keepdim, int outputs, bool replicate) {
  ShardingRule r;
  SmallVector<DimFactor, kMaxRank> from, to;
  for (int d = 0; d < in.rank(); ++d) {
    const DimFactor f{static_cast<int16_t>(r.add_factor(in[d])), 1};
    from.push_back(f);
    if (!reduced(dims, d)) to.push_back(f);
    else if (keepdim) to.push_back({});
    if (reduced(dims, d) && replicate) r.replicate_factor(f.factor);
  }
  r.operand(from).outputs_from_here();
  for (int o = 0; o < outputs; ++o) r.operand(to);
  return r;
}

// --- what joins: A is f32 for narrower floats, i64 for integers, which wrap around --------------------------------

template <class T> using Sums = std::conditional_t<is_floating(dtype_of<T>), compute_t<T>, int64_t>;

template <class T> struct SumOf {
  using A = T;
  static A identity() { return 0; }
  TESSERA_INLINE static A map(A x, A) { return x; }
  TESSERA_INLINE static A join(A a, A b) {
    if constexpr (std::is_same_v<A, int64_t>)
      return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    else return a + b;
  }
};
template <class T> struct LargestOf {  // leaves NaN out; the sum of exponentials brings it back
  using A = T;
  static A identity() { return -std::numeric_limits<A>::infinity(); }
  TESSERA_INLINE static A map(A x, A) { return x; }
  TESSERA_INLINE static A join(A a, A b) { return b > a ? b : a; }
};
template <class T> struct SumExpOf : SumOf<T> {
  using A = T;
  TESSERA_INLINE static A map(A x, A shift) { return vmath::exp(x - shift); }
};

}  // namespace

// --- the family ---------------------------------------------------------------------------------------------------

template <class Op> MetaList Reduce<Op>::meta(Metas in) const {
  const Op& self = static_cast<const Op&>(*this);
  const TensorMeta& x = in[0];
  if (!Op::dtypes.has(x.dtype))
    fail<DTypeError>(Op::name, "the input must be of ", Op::dtypes, ": given ", x, "; cast it");
  if (dims >> x.shape.rank()) {
    fail<IndexError>(Op::name, "the reduced dims (bits of ", dims,
                     ") reach beyond the input: given ", x, " of rank ", x.shape.rank());
  }
  const Shape out = kept_shape(x.shape, dims, keepdim);
  if constexpr (requires { self.divisor(x.shape); }) {
    if (self.divisor(x.shape) <= 0 && out.numel() > 0) {
      fail<ShapeError>(Op::name, "the mean of no elements is not a number: given ", x,
                       ", expected sizes above 0 in the reduced dims");
    }
  }
  return {{out, x.dtype, x.device}};
}

template <class Op> Tensor Reduce<Op>::restore(const Tensor& y, const Shape& input) const {
  return keepdim ? y : reshape(y, kept_shape(input, dims, true));
}

template <class Op> std::vector<Sample<Op>> Reduce<Op>::samples() {
  const auto of = [](DimMask dims, bool keepdim) {
    Op op;
    op.dims = dims;
    op.keepdim = keepdim;
    return op;
  };
  std::vector<Sample<Op>> all{
      {of(0b10, false), {arg({5, 37})}},
      {of(0b01, true), {arg({6, 5})}},
      {of(0b101, false), {arg({5, 6, 7})}},
      {of(0b010, true), {arg({5, 6, 3})}},
      {of(0b0110, false), {arg({5, 3, 2, 7})}},
      {of(0b11, false), {arg({19, 5})}},
      {of(0, false), {arg({})}},
      {of(0b1, false), {arg({1, 5})}},
      timed(of(0b10, false), {arg({1024, 1024})}),
      timed(of(0b01, false), {arg({1024, 1024})}),
      bad(of(0b100, false), {arg({3, 4})}, "IndexError"),
      bad(of(0b1, false), {arg({3}).as(DType::bool_)}, "DTypeError"),
  };
  if constexpr (requires { Op::count; }) {
    Op counted = of(0b10, false);
    counted.count = 60;
    all.push_back({counted, {arg({6, 5})}});
    all.push_back(bad(of(0b10, false), {arg({3, 0})}, "ShapeError"));
  }
  return all;
}

template struct Reduce<Sum>;
template struct Reduce<Mean>;
template struct Reduce<LogSumExp>;

// --- sum and mean -------------------------------------------------------------------------------------------------

ShardingRule Sum::sharding(Metas in) const {
  return reduce_rule(in[0].shape, dims, keepdim, 1, false).linear({0});
}

void Sum::cpu(Tensors in, Outputs y) const {
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    using A = Sums<T>;
    T* to = y[0].data<T>();
    reduce_elements<SumOf<A>, T>(in[0], dims, nullptr,
                                 [to](int64_t o, A sum) { to[o] = static_cast<T>(sum); });
  });
}

Grads Sum::vjp(const Saved& s, const Grads& dy, Needs) const {
  const Shape& shape = s.input_meta(0).shape;
  return {expand(restore(dy[0], shape), shape)};
}

ShardingRule Mean::sharding(Metas in) const {
  return reduce_rule(in[0].shape, dims, keepdim, 1, false).linear({0});
}

int64_t Mean::divisor(const Shape& input) const {
  if (count != 0) return count;
  int64_t n = 1;
  for (int d = 0; d < input.rank(); ++d) n *= reduced(dims, d) ? input[d] : 1;
  return n;
}

Mean Mean::local(const Piece& piece) const {
  Shape global;
  for (const Piece::Range& r : piece.operands[0]) global.push_back(r.global);
  Mean piece_mean = *this;
  piece_mean.count = divisor(global);
  return piece_mean;
}

void Mean::cpu(Tensors in, Outputs y) const {
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    using A = Sums<T>;
    T* to = y[0].data<T>();
    const A n = static_cast<A>(divisor(in[0].shape()));
    reduce_elements<SumOf<A>, T>(in[0], dims, nullptr,
                                 [to, n](int64_t o, A sum) { to[o] = static_cast<T>(sum / n); });
  });
}

Grads Mean::vjp(const Saved& s, const Grads& dy, Needs) const {
  const Shape& shape = s.input_meta(0).shape;
  return {
      expand(restore(affine(dy[0], 1.0 / static_cast<double>(divisor(shape)), 0), shape), shape)};
}

// --- logsumexp ----------------------------------------------------------------------------------------------------

ShardingRule LogSumExp::sharding(Metas in) const {
  return reduce_rule(in[0].shape, dims, keepdim, 1, true);
}

void LogSumExp::cpu(Tensors in, Outputs y) const {
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    using A = Sums<T>;
    T* to = y[0].data<T>();
    const Tensor largest = empty({y[0].numel()}, dtype_of<A>);
    A* shift = largest.data<A>();
    // An infinite largest element must not be taken from itself; as a shift 0 does what is right.
    reduce_elements<LargestOf<A>, T>(in[0], dims, nullptr, [shift](int64_t o, A m) {
      shift[o] = std::abs(m) <= std::numeric_limits<A>::max() ? m : A(0);
    });
    reduce_elements<SumExpOf<A>, T>(in[0], dims, shift, [to, shift](int64_t o, A sum) {
      to[o] = static_cast<T>(shift[o] + vmath::log(sum));
    });
  });
}

Grads LogSumExp::vjp(const Saved& s, const Grads& dy, Needs) const {
  const Tensor& x = s.input(0);
  return {mul(exp(sub(x, restore(s.output(), x.shape()))), restore(dy[0], x.shape()))};
}

// --- max ----------------------------------------------------------------------------------------------------------

namespace {

template <class A> TESSERA_INLINE bool is_nan(A x) {
  if constexpr (std::is_floating_point_v<A>) return x != x;
  else return false;
}

// The index of the first largest element of a row.
template <class T, class A = compute_t<T>>
int64_t first_largest(const T* x, int64_t n, int64_t stride) {
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
          lanes[j] = (v > lanes[j]) | is_nan(v) ? v : lanes[j];
        }
      }
      A best = lanes[0];
      for (int64_t j = 1; j < kLanes; ++j)
        best = (lanes[j] > best) | is_nan(lanes[j]) ? lanes[j] : best;
      for (; i < n; ++i) {
        const A v = read(i);
        best = (v > best) | is_nan(v) ? v : best;
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

// The same for `columns` columns at once.
template <class T, class A = compute_t<T>>
void first_largest_of_columns(const T* x, int64_t n, int64_t row_stride, int64_t columns,
                              int64_t stride, int64_t* at) {
  A best[detail::kReduceColumns];
  for (int64_t j = 0; j < columns; ++j) {
    best[j] = static_cast<A>(x[j * stride]);
    at[j] = 0;
  }
  for (int64_t r = 1; r < n; ++r) {
    simd([&]() TESSERA_LAMBDA {
      const T* row = x + r * row_stride;
      for (int64_t j = 0; j < columns; ++j) {
        const A v = static_cast<A>(row[j * stride]);
        const bool better = (v > best[j]) | (is_nan(v) & !is_nan(best[j]));
        best[j] = better ? v : best[j];
        at[j] = better ? r : at[j];
      }
    });
  }
}

}  // namespace

MetaList Max::meta(Metas in) const {
  const TensorMeta& x = in[0];
  if (!dtypes.has(x.dtype))
    fail<DTypeError>(name, "the input must be of ", dtypes, ": given ", x, "; cast it");
  const int d = normalize_dim(dim, x.shape.rank(), name);
  if (x.shape.rank() > 0 && x.shape[d] == 0) {
    fail<ShapeError>(name, "dim ", dim, " is empty and has no largest element: given ", x,
                     ", expected a size above 0");
  }
  const Shape out = kept_shape(x.shape, 1u << d, keepdim);
  return {{out, x.dtype, x.device}, {out, DType::i64, x.device}};
}

ShardingRule Max::sharding(Metas in) const {
  const Shape& shape = in[0].shape;
  const DimMask dims = 1u << normalize_dim(dim, shape.rank(), name);
  return reduce_rule(shape, dims, keepdim, 2, true);
}

void Max::cpu(Tensors in, Outputs y) const {
  const Tensor& x = in[0];
  if (y[0].numel() == 0) return;
  const int d = normalize_dim(dim, x.rank(), name);
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
                       indices[at.out] = first_largest(row, n, stride);
                       values[at.out] = row[indices[at.out] * stride];
                     }
                   });
      return;
    }
    const int64_t size = plan.inner.size,
                  blocks = (size + detail::kReduceColumns - 1) / detail::kReduceColumns;
    const int64_t work = std::min(size, detail::kReduceColumns) * n;
    parallel_for(plan.kept_size * blocks, std::max<int64_t>(1, detail::kReduceChunk / 2 / work),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t task = begin; task < end; ++task) {
                     const ReduceWalk at(plan.kept, plan.kept_count, task / blocks);
                     const int64_t column = task % blocks * detail::kReduceColumns,
                                   columns = std::min(size - column, detail::kReduceColumns);
                     const T* base = from + at.offset + column * plan.inner.stride;
                     int64_t index[detail::kReduceColumns];
                     first_largest_of_columns(base, n, stride, columns, plan.inner.stride, index);
                     for (int64_t j = 0; j < columns; ++j) {
                       const int64_t o = at.out + (column + j) * plan.inner.out;
                       indices[o] = index[j];
                       values[o] = base[j * plan.inner.stride + index[j] * stride];
                     }
                   }
                 });
  });
}

Grads Max::vjp(const Saved& s, const Grads& dy, Needs) const {
  if (!dy[0].defined()) return Grads(1);
  const TensorMeta& x = s.input_meta(0);
  if (x.shape.rank() == 0) return {dy[0]};
  const int d = normalize_dim(dim, x.shape.rank(), name);
  const Shape kept = kept_shape(x.shape, 1u << d, true);
  return {scatter_zeros(x.shape[d], d, reshape(s.output(1), kept), reshape(dy[0], kept))};
}

std::vector<Sample<Max>> Max::samples() {
  return {
      {Max{-1, false}, {arg({5, 37}).distinct()}},
      {Max{0, true}, {arg({7, 5}).distinct()}},
      {Max{1, false}, {arg({5, 6, 7}).distinct()}},
      {Max{-2, true}, {arg({5, 6, 2}).distinct()}},
      {Max{-1, false}, {arg({}).distinct()}},
      timed(Max{-1, false}, {arg({1024, 1024})}),
      timed(Max{0, false}, {arg({1024, 1024})}),
      bad(Max{2, false}, {arg({3, 4})}, "IndexError"),
      bad(Max{1, false}, {arg({3, 0})}, "ShapeError"),
      bad(Max{0, false}, {arg({3}).as(DType::bool_)}, "DTypeError"),
  };
}

}  // namespace tessera::op

namespace tessera {
namespace {

op::DimMask mask_of(std::initializer_list<int> dims, int rank, std::string_view name) {
  op::DimMask mask = 0;
  for (int dim : dims) {
    const int d = normalize_dim(dim, rank, name);
    if (mask >> d & 1) fail<ShapeError>(name, "dim ", dim, " is given twice");
    mask |= 1u << d;
  }
  if (rank == 0) return 0;
  return dims.size() ? mask : (1u << rank) - 1;
}

}  // namespace

Tensor sum(const Tensor& x, std::initializer_list<int> dims, bool keepdim) {
  return call(op::Sum{{mask_of(dims, x.rank(), "sum"), keepdim}}, {x});
}
Tensor mean(const Tensor& x, std::initializer_list<int> dims, bool keepdim) {
  return call(op::Mean{{mask_of(dims, x.rank(), "mean"), keepdim}, 0}, {x});
}
Tensor logsumexp(const Tensor& x, std::initializer_list<int> dims, bool keepdim) {
  return call(op::LogSumExp{{mask_of(dims, x.rank(), "logsumexp"), keepdim}}, {x});
}

Tensor sum_to(const Tensor& g, const Shape& shape) {
  if (g.shape() == shape) return g;
  const int lead = g.rank() - shape.rank();
  op::DimMask dims = 0;
  for (int d = 0; d < g.rank(); ++d) {
    if (d < lead || (shape[d - lead] == 1 && g.shape()[d] != 1)) dims |= 1u << d;
  }
  const bool drops = dims == (1u << lead) - 1;  // the missing dims alone
  const Tensor y = call(op::Sum{{dims, !drops}}, {g});
  return drops || lead == 0 ? y : reshape(y, shape);
}

}  // namespace tessera
