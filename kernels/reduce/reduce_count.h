// SPDX-License-Identifier: Apache-2.0
// Counts over any dims: exact, in i64, from the bits of the elements.
#pragma once

#include "tessera/kernels/reduce/reduce_family.h"

namespace tessera {
namespace op {

/// How many elements are not zero (i64); NaN is not.
struct CountNonzero : Reduce<CountNonzero> {
  static constexpr std::string_view name = "count_nonzero";
  static constexpr double kKnown[] = {3, 2, 0};
  static constexpr DTypeSet dtypes = kNumbers | dtypes_of(DType::u8, DType::bool_);
  static constexpr NotDifferentiable vjp{"counts are whole numbers"};
  static Arg fill(const Shape& s) { return arg(s).whole(-1, 2); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
};

using count_ops = OpList<CountNonzero>;

}  // namespace op

/// How many elements of x, of any dtype, are not zero over `dims` (all when empty); i64. NaN is not
/// zero.
TESSERA_API Tensor count_nonzero(const Tensor& x, Dims dims = {});

}  // namespace tessera
