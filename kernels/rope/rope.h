// SPDX-License-Identifier: Apache-2.0
// rope: rotary position embedding (Su et al., 2021) of adjacent pairs (x[2i], x[2i+1]), by tables
// of cos and sin. The tables are f32 whatever x is. Its gradient is the rotation by the opposite
// angle: the same op, `inverse`.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// x (..., t, h, d), cos and sin (t, d/2) f32 (f64 for f64 x) -> (..., t, h, d).
struct Rope {
  bool inverse = false;
  static constexpr std::string_view name = "rope";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::input(1, 2);
  auto attributes() const { return std::tie(inverse); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<Rope>> samples();
};

using rope_ops = OpList<Rope>;

}  // namespace op

/// The tables are constants: asking for their gradient is an AutogradError.
inline Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  return call(op::Rope{}, {x, cos, sin});
}

/// Tables for positions [start, start + length): {cos, sin} of (length, dim/2), angle = position *
/// theta^(-2i/dim).
TESSERA_API std::array<Tensor, 2> rope_tables(int64_t length, int64_t dim, double theta,
                                              int64_t start = 0, DType dtype = DType::f32);

}  // namespace tessera
