// SPDX-License-Identifier: Apache-2.0
// Inverted dropout (Srivastava et al., JMLR 2014). Which elements stay is a pure function of a key
// and of the element's number in the whole tensor, so it is the same on any mesh and device, and
// backward makes it again instead of saving it. The key and the row of the global batch at which x
// begins are inputs, as all that changes from step to step: plans and graphs can be kept.
#pragma once

#include "tessera/core/op.h"
#include "tessera/core/rng.h"

namespace tessera {
namespace op {

/// Inputs x, seed, stream and row, () i64 each -> y of x's shape: x / (1 - p) where it stays, else
/// 0. x is the part of a tensor of shape `whole` that begins at `start`, whose own dim 0 begins at
/// `row`; without dims the row has no effect.
struct Dropout {
  double p = 0.5;
  Shape whole, start;
  static constexpr std::string_view name = "dropout";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::input(1, 2, 3);
  auto attributes() const { return std::tie(p, whole, start); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  Dropout local(const Piece& piece) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<Dropout>> samples();
  /// Elements whose random bits are below this are dropped: p of all 2^32, rounded down.
  [[nodiscard]] uint32_t threshold() const { return static_cast<uint32_t>(p * 0x1p32); }
  [[nodiscard]] double scale() const { return 1 / (1 - p); }
  /// Elements of a row of the whole: 0 without dims.
  [[nodiscard]] int64_t row_size() const {
    int64_t size = whole.rank() > 0 ? 1 : 0;
    for (int d = 1; d < whole.rank(); ++d) size *= whole[d];
    return size;
  }
};

using dropout_ops = OpList<Dropout>;

}  // namespace op

/// x (any shape, floating) with each element dropped with probability p in [0, 1), the others
/// divided by 1 - p. x itself where `training` is false or p is 0; else the key is the next draw of
/// the current module, in which dim 0 of x counts the rows of the batch. ValueError for another p.
TESSERA_API Tensor dropout(const Tensor& x, double p, bool training = true);
/// The same by a given key; dim 0 of x begins at row `row`.
TESSERA_API Tensor dropout(const Tensor& x, double p, RngKey key, int64_t row = 0);

}  // namespace tessera
