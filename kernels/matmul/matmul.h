// SPDX-License-Identifier: Apache-2.0
// Matrix products, accumulated in f32 (f64 for f64), of row-major or transposed operands without
// copies. Large ones go to oneDNN with cached primitives (Eigen where it is missing), small ones to
// an own kernel without set-up cost.
#pragma once

#include "tessera/core/op.h"

#include <string>

namespace tessera {
namespace op {

/// a (..., m, k) times b (k, n) or (..., k, n); with transpose_a, a is (..., k, m); with
/// transpose_b, b is (..., n, k). Leading dims of a 2-D b are a's; those of a batched b broadcast
/// with a's.
struct MatMul {
  bool transpose_a = false, transpose_b = false;
  static constexpr std::string_view name = "matmul";
  static constexpr bool expensive = true;
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::inputs();
  auto attributes() const { return std::tie(transpose_a, transpose_b); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  Cost cost(Metas in, Metas out) const;
  static std::vector<Sample<MatMul>> samples();
};

/// Sum over all leading dims of the outer products: a (..., m), b (..., n) -> (m, n). The gradient
/// of a weight.
struct ContractLeading {
  static constexpr std::string_view name = "contract_leading";
  static constexpr bool expensive = true;
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::inputs();
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  Cost cost(Metas in, Metas out) const;
  static std::vector<Sample<ContractLeading>> samples();
};

using matmul_ops = OpList<MatMul, ContractLeading>;

}  // namespace op

namespace detail {
/// One operand or both have one dim.
TESSERA_API Tensor matmul_vectors(const Tensor& a, const Tensor& b, bool transpose_a,
                                  bool transpose_b);
}  // namespace detail

/// Matrix product over the last two dims; see op::MatMul. An operand with one dim is a vector, a
/// row on the left and a column on the right, whose dim of size 1 the result lacks: (k) and (k)
/// give
/// (), (..., m, k) and (k) give (..., m); `transpose` of a vector changes nothing. ShapeError names
/// both operands.
inline Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a = false,
                     bool transpose_b = false) {
  if (a.rank() == 1 || b.rank() == 1) return detail::matmul_vectors(a, b, transpose_a, transpose_b);
  return call(op::MatMul{transpose_a, transpose_b}, {a, b});
}
/// x (..., in) times weight (out, in) transposed: (..., out); of a weight (in): (...).
inline Tensor linear(const Tensor& x, const Tensor& weight) {
  return matmul(x, weight, false, true);
}
inline Tensor contract_leading(const Tensor& a, const Tensor& b) {
  return call(op::ContractLeading{}, {a, b});
}

/// Who computes products on this machine, and with which instructions: what their bits depend on
/// besides the operands. "oneDNN 2.6.0 avx512_core_amx, kernels avx512, f32 by own
/// vectors, bf16 by own tiles".
[[nodiscard]] TESSERA_API std::string product_route();

}  // namespace tessera
