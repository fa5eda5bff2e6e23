// SPDX-License-Identifier: Apache-2.0
// skeleton(x, w): x * w along the last dim. Say here what the op computes, its source, and the
// decisions taken.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// x (..., d), w (d) -> (..., d).
struct Skeleton {
  double factor = 1;  // attributes are the op's own data
  static constexpr std::string_view name = "skeleton";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::inputs();  // what backward keeps
  auto attributes() const { return std::tie(factor); }
  MetaList meta(Metas in) const;          // shape and dtype of each output; every check
  ShardingRule sharding(Metas in) const;  // which dims may be sharded, what becomes Partial
  void cpu(Tensors in, Outputs y) const;  // skeleton.cpp
  void cuda(Tensors in, Outputs y, Stream stream) const;          // skeleton.cu
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;  // in ops; only what is needed
  static std::vector<Sample<Skeleton>> samples();  // feeds the laws, the bench and the docs
};

using skeleton_ops = OpList<Skeleton>;  // <room>_ops: what op_rooms() puts in the table

}  // namespace op

inline Tensor skeleton(const Tensor& x, const Tensor& w, double factor = 1) {
  return call(op::Skeleton{factor}, {x, w});
}

}  // namespace tessera
