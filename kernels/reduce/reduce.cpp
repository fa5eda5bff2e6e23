// SPDX-License-Identifier: Apache-2.0
// Sums, means, products, peaks and truth over any dims: sharding, gradients and CPU kernels, and
// what the family shares.
#include "tessera/kernels/reduce/reduce.h"

#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce_family_impl.h"

namespace tessera::op {

Shape kept_shape(const Shape& in, DimMask dims, bool keepdim) {
  Shape out;
  for (int d = 0; d < in.rank(); ++d) {
    if (!reduced(dims, d)) out.push_back(in[d]);
    else if (keepdim) out.push_back(1);
  }
  return out;
}

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

void check_reduced(std::string_view name, DTypeSet dtypes, const TensorMeta& x, DimMask dims,
                   bool of_nothing) {
  if (!dtypes.has(x.dtype))
    fail<DTypeError>(name, "the input must be of ", dtypes, ": given ", x, "; cast it");
  if (dims >> x.shape.rank()) {
    fail<IndexError>(name, "the reduced dims (bits of ", dims, ") reach beyond the input: given ",
                     x, " of rank ", x.shape.rank());
  }
  if (!of_nothing && reduced_count(x.shape, dims) == 0 &&
      kept_shape(x.shape, dims, false).numel() > 0) {
    fail<ShapeError>(name, "no element to choose from: given ", x,
                     ", expected sizes above 0 in the reduced dims");
  }
}

DimMask mask_of(Dims dims, int rank, std::string_view name) {
  DimMask mask = 0;
  for (int dim : dims) {
    const int d = normalize_dim(dim, rank, name);
    if (mask >> d & 1) fail<ShapeError>(name, "dim ", dim, " is given twice");
    mask |= 1u << d;
  }
  if (rank == 0) return 0;
  return dims.size() ? mask : (1u << rank) - 1;
}

namespace {

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
template <class T> struct ProductOf {
  using A = T;
  static A identity() { return 1; }
  TESSERA_INLINE static A map(A x, A) { return x; }
  TESSERA_INLINE static A join(A a, A b) {
    if constexpr (std::is_same_v<A, int64_t>)
      return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    else return a * b;
  }
};
template <bool kAny> struct TruthOf {
  using A = uint8_t;
  static A identity() { return kAny ? 0 : 1; }
  TESSERA_INLINE static A map(A x, A) { return x; }
  TESSERA_INLINE static A join(A a, A b) { return static_cast<A>(kAny ? a | b : a & b); }
};

}  // namespace

template struct Reduce<Sum>;
template struct Reduce<Mean>;
template struct Reduce<LogSumExp>;
template struct Reduce<Prod>;
template struct Reduce<AMax>;
template struct Reduce<AMin>;
template struct Reduce<Any>;
template struct Reduce<All>;

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
  return count != 0 ? count : reduced_count(input, dims);
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
  const Tensor &x = s.input(0), y = restore(s.output(), x.shape());
  // Where every x is -inf, none has a share: -inf - 0 there instead of -inf - -inf.
  const double lowest = -std::numeric_limits<double>::infinity();
  const Tensor nothing = equal(y, full({}, lowest, y.dtype(), y.device()));
  return {mul(exp(sub(x, masked_fill(y, nothing, 0))), restore(dy[0], x.shape()))};
}

// --- prod ---------------------------------------------------------------------------------------------------------

ShardingRule Prod::sharding(Metas in) const {
  return reduce_rule(in[0].shape, dims, keepdim, 1, true);
}

void Prod::cpu(Tensors in, Outputs y) const {
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    using A = Sums<T>;
    T* to = y[0].data<T>();
    reduce_elements<ProductOf<A>, T>(
        in[0], dims, nullptr, [to](int64_t o, A product) { to[o] = static_cast<T>(product); });
  });
}

Grads Prod::vjp(const Saved& s, const Grads& dy, Needs) const {
  return {call(ProdBackward{dims, keepdim}, {s.input(0), dy[0]})};
}

// --- amax and amin, any and all -----------------------------------------------------------------------------------

template <class Op> ShardingRule Peak<Op>::sharding(Metas in) const {
  return reduce_rule(in[0].shape, this->dims, this->keepdim, 1, false)
      .join(Op::kLargest ? Join::max : Join::min);
}

template <class Op> void Peak<Op>::cpu(Tensors in, Outputs y) const {
  dispatch<Reduce<Op>::dtypes>(in[0].dtype(), [&]<class T>() {
    using A = compute_t<T>;
    T* to = y[0].data<T>();
    reduce_elements<PeakOf<A, Op::kLargest>, T>(
        in[0], this->dims, nullptr, [to](int64_t o, A peak) { to[o] = static_cast<T>(peak); });
  });
}

template <class Op> Grads Peak<Op>::vjp(const Saved& s, const Grads& dy, Needs) const {
  const Tensor& x = s.input(0);
  const Tensor ties = equal(x, this->restore(s.output(), x.shape()));
  const DType wide = compute_dtype(x.dtype());  // narrow counts overflow
  const Tensor count = call(Sum{{this->dims, true}}, {cast(ties, wide)});
  const Tensor share = div(cast(this->restore(dy[0], x.shape()), wide), count);
  return {mul(cast(ties, x.dtype()), cast(share, x.dtype()))};
}

template struct Peak<AMax>;
template struct Peak<AMin>;

template <class Op> ShardingRule Truth<Op>::sharding(Metas in) const {
  return reduce_rule(in[0].shape, this->dims, this->keepdim, 1, false)
      .join(Op::kLargest ? Join::max : Join::min);
}

template <class Op> void Truth<Op>::cpu(Tensors in, Outputs y) const {
  bool* to = y[0].data<bool>();
  reduce_elements<TruthOf<Op::kLargest>, uint8_t>(
      in[0], this->dims, nullptr, [to](int64_t o, uint8_t truth) { to[o] = truth != 0; });
}

template struct Truth<Any>;
template struct Truth<All>;

}  // namespace tessera::op

namespace tessera {

Tensor sum(const Tensor& x, Dims dims, bool keepdim) {
  return call(op::Sum{{op::mask_of(dims, x.rank(), "sum"), keepdim}}, {x});
}
Tensor mean(const Tensor& x, Dims dims, bool keepdim) {
  const op::DimMask mask = op::mask_of(dims, x.rank(), "mean");
  if (x.dtype() != DType::bool_) return call(op::Mean{{mask, keepdim}, 0}, {x});
  const int64_t n = op::reduced_count(x.shape(), mask);
  if (n == 0) fail<ShapeError>("mean", "the mean of no elements is not a number: given ", x.meta());
  const Tensor count = cast(call(op::CountNonzero{{mask, keepdim}}, {x}), DType::f64);
  return cast(div(count, full({}, static_cast<double>(n), DType::f64, x.device())), DType::f32);
}
Tensor logsumexp(const Tensor& x, Dims dims, bool keepdim) {
  return call(op::LogSumExp{{op::mask_of(dims, x.rank(), "logsumexp"), keepdim}}, {x});
}

Tensor prod(const Tensor& x, Dims dims, bool keepdim) {
  return call(op::Prod{{op::mask_of(dims, x.rank(), "prod"), keepdim}}, {x});
}
Tensor amax(const Tensor& x, Dims dims, bool keepdim) {
  return call(op::AMax{{{op::mask_of(dims, x.rank(), "amax"), keepdim}}}, {x});
}
Tensor amin(const Tensor& x, Dims dims, bool keepdim) {
  return call(op::AMin{{{op::mask_of(dims, x.rank(), "amin"), keepdim}}}, {x});
}
Tensor any(const Tensor& x, Dims dims, bool keepdim) {
  return call(op::Any{{{op::mask_of(dims, x.rank(), "any"), keepdim}}}, {x});
}
Tensor all(const Tensor& x, Dims dims, bool keepdim) {
  return call(op::All{{{op::mask_of(dims, x.rank(), "all"), keepdim}}}, {x});
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
