// SPDX-License-Identifier: Apache-2.0
// triu and tril: the upper or lower triangle of the last two dims, zero elsewhere. A piece moves
// its diagonal, so rows and columns may be sharded.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// x (..., R, C): element (i, j) stays where j - i >= diagonal (upper), j - i <= diagonal (lower).
struct Triangle {
  int64_t diagonal = 0;
  bool upper = true;
  static constexpr std::string_view name = "triangle";
  static constexpr DTypeSet dtypes = kNumbers | dtypes_of(DType::bool_);
  static constexpr Saves saves = Saves::none();
  auto attributes() const { return std::tie(diagonal, upper); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  Triangle local(const Piece& piece) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<Triangle>> samples();
  /// The diagonal within what any shape can tell apart, so that sums with it do not overflow.
  [[nodiscard]] int64_t bounded() const {
    constexpr int64_t kFar = int64_t{1} << 60;
    return diagonal < -kFar ? -kFar : (diagonal > kFar ? kFar : diagonal);
  }
};

using triangle_ops = OpList<Triangle>;

}  // namespace op

/// x (..., R, C) with zeros below the diagonal (triu) or above it (tril); `diagonal` counts upwards
/// from the main one. ShapeError below rank 2.
inline Tensor triu(const Tensor& x, int64_t diagonal = 0) {
  return call(op::Triangle{diagonal, true}, {x});
}
inline Tensor tril(const Tensor& x, int64_t diagonal = 0) {
  return call(op::Triangle{diagonal, false}, {x});
}

}  // namespace tessera
