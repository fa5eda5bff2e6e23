// SPDX-License-Identifier: Apache-2.0
// What the reduce family gives an op: dims as a set of bits, meta, samples. An op adds its sharding
// rule, kernels of a few lines over reduce_elements, and its gradient in ops.
#pragma once

#include "tessera/core/dims.h"
#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// Which dims are reduced: bit d for dim d.
using DimMask = uint32_t;

/// What an op gives: its results over dim 1 of {{1, 2, 4}, {3, 0, 5}, {0, 0, 0}} (of what is not
/// zero, for bool), from a source that is not this code, stand in
///   static constexpr double kKnown[] = {7, 8, 0};
template <class Op> struct Reduce {
  DimMask dims = 0;
  bool keepdim = false;
  static constexpr Saves saves = Saves::none();
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr bool kBoolOutput = false;
  static constexpr bool kOfNothing = true;  // whether it has a value of no elements
  auto attributes() const { return std::tie(dims, keepdim); }
  MetaList meta(Metas in) const;
  static std::vector<Sample<Op>> samples();
  /// A tensor of the output's shape with the reduced dims back as size 1.
  Tensor restore(const Tensor& y, const Shape& input) const;
};

/// The set of `dims` of a tensor of this rank, all where none is given; dims may count from the
/// end. IndexError, or ShapeError where one is given twice.
DimMask mask_of(Dims dims, int rank, std::string_view name);

}  // namespace op
}  // namespace tessera
