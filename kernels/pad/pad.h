// SPDX-License-Identifier: Apache-2.0
// pad: a tensor with elements added, or taken away, at both ends of its last dims, as
// torch.nn.functional.pad. Constant padding is one op; the other modes are cats of slices.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// x (..., n, ...) -> (..., before + n + after, ...), `value` around x; one number of elements per
/// dim in `before` and in `after`.
struct Pad {
  Shape before, after;
  double value = 0;
  static constexpr std::string_view name = "pad";
  static constexpr DTypeSet dtypes = kAllDTypes;
  static constexpr Saves saves = Saves::none();
  auto attributes() const { return std::tie(before, after, value); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<Pad>> samples();
  /// Where x lies inside y.
  [[nodiscard]] Tensor target(const Tensor& y, const Shape& shape) const {
    int64_t offset = y.offset();
    for (int d = 0; d < shape.rank(); ++d) offset += before[d] * y.strides()[d];
    return alias(y, shape, y.strides(), offset);
  }
};

using pad_ops = OpList<Pad>;

}  // namespace op

/// What stands in the added places: a value; the elements mirrored at the edge, which is not
/// repeated; the edge itself; the elements of the other end.
enum class PadMode : uint8_t { constant, reflect, replicate, circular };

/// `sizes` are pairs (before, after), the last dim first: (2, 3) by {1, 2} -> (2, 6), by {1, 2, 0,
/// 1}
/// -> (3, 6). A negative size takes elements away. In any mode but constant, `value` is not read.
/// ShapeError for an odd number of sizes or more pairs than dims, where less than nothing would be
/// left, where reflect has no element to mirror (its sizes are below the dim's), replicate none to
/// repeat, or circular would go round more than once.
TESSERA_API Tensor pad(const Tensor& x, const Shape& sizes, PadMode mode = PadMode::constant,
                       double value = 0);

}  // namespace tessera
