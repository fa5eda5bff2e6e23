// SPDX-License-Identifier: Apache-2.0
// Random choices: randint, and made of it and of uniform numbers bernoulli and multinomial. Each
// result is a pure function of a key and of the element's number in the whole tensor: the same on
// any device and mesh.
#pragma once

#include "tessera/core/op.h"
#include "tessera/core/rng.h"

namespace tessera {
namespace op {

/// -> shape: whole numbers in [low, high). `whole` and `start` place a piece; whole of rank 0: the
/// shape.
struct RandInt {
  Shape shape;
  int64_t low = 0, high = 1;
  DType dtype = DType::i64;
  Device device = kCpu;
  RngKey key;
  Shape whole, start;
  static constexpr std::string_view name = "randint";
  static constexpr DTypeSet dtypes = kIntegers;
  static constexpr NotDifferentiable vjp{"it has no tensor input"};
  auto attributes() const {
    return std::tie(shape, low, high, dtype, device, key.seed, key.stream, whole, start);
  }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  RandInt local(const Piece& piece) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<RandInt>> samples();
  /// The number that 64 random bits stand for, the upper half of their product with the size of the
  /// range: no number is more likely than another by more than size / 2^64.
  [[nodiscard]] TESSERA_HD int64_t number(uint32_t upper, uint32_t lower) const {
    const uint64_t size = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
    const uint64_t size_upper = size >> 32, size_lower = size & 0xffffffffu;
    const uint64_t a = upper * size_lower, b = lower * size_upper;
    const uint64_t middle = (lower * size_lower >> 32) + (a & 0xffffffffu) + (b & 0xffffffffu);
    const uint64_t product = upper * size_upper + (a >> 32) + (b >> 32) + (middle >> 32);
    return static_cast<int64_t>(static_cast<uint64_t>(low) + product);
  }
  /// Element `i` of the whole.
  [[nodiscard]] TESSERA_HD int64_t element(uint64_t i) const {
    const rng::Block b = rng::philox(key, i / 2);
    return number(b.v[i % 2 * 2], b.v[i % 2 * 2 + 1]);
  }
};

using sampling_ops = OpList<RandInt>;

}  // namespace op

/// Whole numbers in [low, high), each equally likely, of dtype i64 or i32. ValueError unless low <
/// high and both fit the dtype, ShapeError for a negative size.
inline Tensor randint(int64_t low, int64_t high, const Shape& shape, RngKey key,
                      DType dtype = DType::i64, Device device = kCpu) {
  return call(op::RandInt{shape, low, high, dtype, device, key, {}, {}}, {});
}
/// 1 with probability p, else 0, for each element of p (any shape, floating, in [0, 1]) -> p's
/// shape and dtype; p at or below 0 gives 0, at or above 1 gives 1. It lies as p does, and has no
/// gradient. `row`: the row of a larger tensor at which dim 0 begins, of which it gets the bits.
TESSERA_API Tensor bernoulli(const Tensor& p, RngKey key, int64_t row = 0);
/// `count` places along the last dim of p, (n) or (B, n), each with a probability in proportion to
/// its weight -> (count) or (B, count) i64. Without replacement no place is taken twice, and they
/// stand in the order in which they were drawn. p is floating, at least 0 and finite, and has
/// `count` positive weights (one, with replacement) in each row: ValueError on a CPU tensor; on
/// other devices values are not looked at. ShapeError for another rank or an empty last dim.
TESSERA_API Tensor multinomial(const Tensor& p, int64_t count, RngKey key, bool replacement = false,
                               int64_t row = 0);

/// The same three by the next draw of the current module, as `rand`: dim 0 counts the rows of the
/// batch.
TESSERA_API Tensor randint(int64_t low, int64_t high, const Shape& shape, DType dtype = DType::i64,
                           Device device = kCpu);
TESSERA_API Tensor bernoulli(const Tensor& p);
TESSERA_API Tensor multinomial(const Tensor& p, int64_t count, bool replacement = false);

}  // namespace tessera
