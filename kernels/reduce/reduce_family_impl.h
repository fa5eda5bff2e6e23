// SPDX-License-Identifier: Apache-2.0
// Meta, rule and samples of the reduce family, and what its CPU kernels join: each file of ops
// instantiates them for its own.
#pragma once

#include "tessera/kernels/reduce/reduce_family.h"
#include "tessera/kernels/reduce/reduce_loops_impl.h"
#include "tessera/kernels/vector_math.h"
#include "tessera/kernels/views/views.h"

#include <cmath>
#include <limits>
#include <type_traits>

namespace tessera::op {

inline bool reduced(DimMask dims, int d) { return dims >> d & 1; }

/// Elements that one output is made of.
inline int64_t reduced_count(const Shape& in, DimMask dims) {
  int64_t n = 1;
  for (int d = 0; d < in.rank(); ++d) n *= reduced(dims, d) ? in[d] : 1;
  return n;
}

Shape kept_shape(const Shape& in, DimMask dims, bool keepdim);
/// Every dim of the input is a factor; the reduced ones leave the outputs.
ShardingRule reduce_rule(const Shape& in, DimMask dims, bool keepdim, int outputs, bool replicate);
/// Throws what a bad input of a reduction deserves.
void check_reduced(std::string_view name, DTypeSet dtypes, const TensorMeta& x, DimMask dims,
                   bool of_nothing);

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
/// The largest (smallest), NaN if any is.
template <class T, bool kLargest> struct PeakOf {
  using A = T;
  static A identity() {
    if constexpr (std::is_floating_point_v<A>)
      return kLargest ? -std::numeric_limits<A>::infinity() : std::numeric_limits<A>::infinity();
    else return kLargest ? std::numeric_limits<A>::lowest() : std::numeric_limits<A>::max();
  }
  TESSERA_INLINE static A map(A x, A) { return x; }
  // Two choices: g++ gives up vectorising one of `b > a | b != b` where joins are nested.
  TESSERA_INLINE static A join(A a, A b) {
    const A peak = (kLargest ? b > a : b < a) ? b : a;
    return b != b ? b : peak;
  }
};

/// 1 where one of these bits of an element, read as an unsigned number, is set.
template <int64_t kBits> struct BitsSet : SumOf<int64_t> {
  using A = int64_t;
  TESSERA_INLINE static A map(A x, A) { return (x & kBits) != 0; }
};

// --- the family ---------------------------------------------------------------------------------------------------

template <class Op> MetaList Reduce<Op>::meta(Metas in) const {
  const TensorMeta& x = in[0];
  check_reduced(Op::name, Op::dtypes, x, dims, Op::kOfNothing);
  const Op& self = static_cast<const Op&>(*this);
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
  const auto fill = [](const Shape& s) {
    if constexpr (requires { Op::fill(s); }) return Op::fill(s);
    else return arg(s);
  };
  const bool truth = Op::dtypes.has(DType::bool_) && !Op::dtypes.has(DType::f32);
  // No reduction takes floats of eight bits.
  const DType unfit = Op::dtypes.has(DType::bool_) ? DType::f8_e5m2 : DType::bool_;
  std::vector<Sample<Op>> all{
      {of(0b10, false), {fill({5, 37})}},
      {of(0b01, true), {fill({6, 5})}},
      {of(0b101, false), {fill({5, 6, 7})}},
      {of(0b010, true), {fill({5, 6, 3})}},
      {of(0b0110, false), {fill({5, 3, 2, 7})}},
      {of(0b11, false), {fill({19, 5})}},
      {of(0, false), {fill({})}},
      {of(0b1, false), {fill({1, 5})}},
      timed(of(0b10, false), {fill({1024, 1024})}),
      timed(of(0b01, false), {fill({1024, 1024})}),
      bad(of(0b100, false), {arg({3, 4})}, "IndexError"),
      bad(of(0b1, false), {arg({3}).as(unfit)}, "DTypeError"),
  };
  if constexpr (requires { Op::count; }) {
    Op counted = of(0b10, false);
    counted.count = 60;
    all.push_back({counted, {arg({6, 5})}});
  }
  if constexpr (requires { Op::kKnown; }) {
    std::vector<double> x{1, 2, 4, 3, 0, 5, 0, 0, 0};
    for (double& v : x) v = truth ? v != 0 : v;
    all.push_back(known(of(0b10, false), {arg({3, 3}).listed(x)},
                        {{std::begin(Op::kKnown), std::end(Op::kKnown)}}));
  }
  if (!Op::kOfNothing || requires { Op::count; })
    all.push_back(bad(of(0b10, false), {arg({3, 0})}, "ShapeError"));
  return all;
}

}  // namespace tessera::op
