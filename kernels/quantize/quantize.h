// SPDX-License-Identifier: Apache-2.0
// quantize and dequantize f8 (OCP 8-bit floating point 1.0), with one scale for a tensor or for
// each row: scale = amax / largest finite value (1 where that is 0), values x / scale, saturating
// and rounded to nearest even. The largest magnitude is of the whole tensor or row also where that
// is cut: one dim (the first, or with rows the last) may be, its pieces join their maxima.
#pragma once

#include "tessera/core/op.h"

#include <array>
#include <memory>

namespace tessera {
namespace op {

/// x (..., d) -> values (..., d) of dtype `to`, scale () f32, or (...) where `per_row`.
struct Quantize {
  DType to = DType::f8_e4m3;
  bool per_row = false;
  std::shared_ptr<Joiner> joiner = {};  // of a piece
  static constexpr std::string_view name = "quantize";
  static constexpr DTypeSet dtypes = dtypes_of(DType::f32, DType::bf16, DType::f16);
  static constexpr int outputs = 2;
  static constexpr NotDifferentiable vjp{
      "rounding to 8 bits is a staircase; for a straight-through gradient add the detached "
      "difference to x"};
  auto attributes() const { return std::tie(to, per_row); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  Quantize local(const Piece& piece) const { return {to, per_row, piece.joiner}; }
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<Quantize>> samples();
};

/// values (..., d) f8, scale () or (...) f32 -> values * scale of dtype `to`.
struct Dequantize {
  DType to = DType::f32;
  static constexpr std::string_view name = "dequantize";
  static constexpr DTypeSet dtypes = dtypes_of(DType::f8_e4m3, DType::f8_e5m2);
  static constexpr NotDifferentiable vjp{
      "f8 values are stored results and have no gradient; for a straight-through gradient add the "
      "detached difference to what was quantized"};
  auto attributes() const { return std::tie(to); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<Dequantize>> samples();
};

using quantize_ops = OpList<Quantize, Dequantize>;

}  // namespace op

struct Quantized {
  Tensor values;  ///< (..., d) f8_e4m3 or f8_e5m2
  Tensor scale;   ///< f32, () or with rows (...): what the values are multiplied by
};
/// x (..., d) of f32, bf16 or f16. DTypeError where `to` is no f8, ShapeError for rows of a 0-dim
/// x. A NaN makes the scale, and with it all that shares it, NaN; infinity makes the scale
/// infinite.
inline Quantized quantize(const Tensor& x, DType to = DType::f8_e4m3, bool per_row = false) {
  auto [values, scale] = call(op::Quantize{to, per_row}, {x});
  return {values, scale};
}
/// values (..., d) f8 times scale () or (...) f32, rounded once to `to` (f32, bf16 or f16).
inline Tensor dequantize(const Tensor& values, const Tensor& scale, DType to = DType::f32) {
  return call(op::Dequantize{to}, {values, scale});
}
inline Tensor dequantize(const Quantized& q, DType to = DType::f32) {
  return dequantize(q.values, q.scale, to);
}

}  // namespace tessera
