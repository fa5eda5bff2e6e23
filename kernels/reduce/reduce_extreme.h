// SPDX-License-Identifier: Apache-2.0
// max and min along one dim, with the index of the first occurrence; argmax and argmin are their
// second output.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// Largest (smallest) element along `dim` and the index of its first occurrence (i64). NaN counts
/// as the extreme.
template <class Op> struct Extreme {
  int dim = -1;
  bool keepdim = false;
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr int outputs = 2;
  static constexpr Saves saves = Saves::outputs(1);
  auto attributes() const { return std::tie(dim, keepdim); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<Op>> samples();
};
struct Max : Extreme<Max> {
  static constexpr std::string_view name = "max";
  static constexpr bool expensive = true;
  static constexpr bool kLargest = true;
};
struct Min : Extreme<Min> {
  static constexpr std::string_view name = "min";
  static constexpr bool kLargest = false;
};

using extreme_ops = OpList<Max, Min>;

}  // namespace op

/// {values, indices} along `dim`; the first of equals, NaN before numbers. ShapeError of an empty
/// dim.
inline std::array<Tensor, 2> max(const Tensor& x, int dim, bool keepdim = false) {
  return call(op::Max{{dim, keepdim}}, {x});
}
inline std::array<Tensor, 2> min(const Tensor& x, int dim, bool keepdim = false) {
  return call(op::Min{{dim, keepdim}}, {x});
}
/// The indices alone (i64); without a dim, of the flattened x.
inline Tensor argmax(const Tensor& x, int dim, bool keepdim = false) {
  return max(x, dim, keepdim)[1];
}
inline Tensor argmin(const Tensor& x, int dim, bool keepdim = false) {
  return min(x, dim, keepdim)[1];
}
TESSERA_API Tensor argmax(const Tensor& x);
TESSERA_API Tensor argmin(const Tensor& x);

}  // namespace tessera
