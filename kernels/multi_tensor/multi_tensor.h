// SPDX-License-Identifier: Apache-2.0
// Ops on lists of tensors in one call: the sum of squares (in f64, so that equal values give equal
// norms under any sharding) and scaling in place. clip_grad_norm_ is made of both.
#pragma once

#include "tessera/core/op.h"
#include "tessera/kernels/vector_math.h"

namespace tessera {
namespace op {

/// What scale_ makes of x; optimizer steps that take a factor make the same of a gradient.
template <class T> TESSERA_MATH T scaled(T x, compute_t<T> factor) {
  return static_cast<T>(static_cast<compute_t<T>>(x) * factor);
}

/// n tensors -> () f64: the sum of the squares of all elements.
struct SumSquares {
  static constexpr std::string_view name = "sum_squares";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::inputs();
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<SumSquares>> samples();
};

/// factor () f64, then n tensors, each multiplied by it in place; a factor of 1 costs no pass over
/// them.
struct Scale {
  static constexpr std::string_view name = "scale_";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr NotDifferentiable vjp{"it works in place, on gradients and buffers"};
  static constexpr bool writes(size_t i, size_t) { return i >= 1; }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs written) const;
  void cuda(Tensors in, Outputs written, Stream stream) const;
  static std::vector<Sample<Scale>> samples();
};

using multi_tensor_ops = OpList<SumSquares, Scale>;

}  // namespace op

/// The squares of all elements of all tensors, summed in f64 -> () f64, plain and equal on all
/// ranks. Each element of a distributed tensor counts once; LayoutError where some are plain and
/// some are not. Not recorded.
TESSERA_API Tensor sum_of_squares(const std::vector<Tensor>& tensors);
/// The 2-norm of all elements of all tensors: the root of sum_of_squares, rounded once to f32 -> ()
/// f32. Errors as there.
TESSERA_API Tensor norm(const std::vector<Tensor>& tensors);
/// Multiplies all tensors in place by a factor, which is () f64 and plain, or a number.
TESSERA_API void scale_(const std::vector<Tensor>& tensors, const Tensor& factor);
TESSERA_API void scale_(const std::vector<Tensor>& tensors, double factor);

}  // namespace tessera
