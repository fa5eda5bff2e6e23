// SPDX-License-Identifier: Apache-2.0
// A random permutation that is a pure function of a key: the order of n random 64-bit numbers, ties
// by place. Every order is equally likely, up to the chance of a tie.
#pragma once

#include "tessera/core/op.h"
#include "tessera/core/rng.h"

namespace tessera {
namespace op {

/// -> (count) i64: elements begin, begin + 1, ... of a permutation of 0 .. n - 1. A piece makes the
/// whole order and keeps its part.
struct Permutation {
  int64_t n = 0;
  RngKey key;
  int64_t begin = 0, count = 0;
  Device device = kCpu;
  static constexpr std::string_view name = "permutation";
  static constexpr DTypeSet dtypes = dtypes_of(DType::i64);
  static constexpr NotDifferentiable vjp{"it has no tensor input"};
  auto attributes() const { return std::tie(n, key.seed, key.stream, begin, count, device); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  Permutation local(const Piece& piece) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<Permutation>> samples();
  /// The number by which place i is sorted: its upper half is the first 32 bits.
  [[nodiscard]] TESSERA_HD uint64_t weight(uint64_t i) const {
    const rng::Block b = rng::philox(key, i / 2);
    return uint64_t{b.v[i % 2 * 2]} << 32 | b.v[i % 2 * 2 + 1];
  }
};

using permutation_ops = OpList<Permutation>;

}  // namespace op

/// 0 .. n - 1 in random order -> (n) i64, the same for the same key on any device and mesh.
/// ShapeError for a negative n.
inline Tensor permutation(int64_t n, RngKey key, Device device = kCpu) {
  return call(op::Permutation{n, key, 0, n, device}, {});
}

}  // namespace tessera
