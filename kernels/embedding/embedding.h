// SPDX-License-Identifier: Apache-2.0
// embedding: rows of a table by index. A piece of the vocabulary gives zeros for ids of other
// pieces, so that a cut table yields a Partial(sum). Its gradient adds rows in the order of the
// tokens: the same bits on every run.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// weight (V, D), ids (...) i64 -> (..., D). On a piece, `begin` is its first row and `vocabulary`
/// the global V (0: own).
struct Embedding {
  int64_t begin = 0, vocabulary = 0;
  static constexpr std::string_view name = "embedding";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::input(0, 1);
  auto attributes() const { return std::tie(begin, vocabulary); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  Embedding local(const Piece& piece) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<Embedding>> samples();
};

/// dy (..., D), ids (...), weight (rows, D) (optional) -> (rows, D): the sum of dy's rows by id.
/// The weight is not read: it says how the rows are cut, so that the gradient of a cut table is
/// cut.
struct EmbeddingBackward {
  int64_t rows = 0, begin = 0, vocabulary = 0;
  static constexpr std::string_view name = "embedding_backward";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::input(1);
  auto attributes() const { return std::tie(rows, begin, vocabulary); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  EmbeddingBackward local(const Piece& piece) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<EmbeddingBackward>> samples();
};

using embedding_ops = OpList<Embedding, EmbeddingBackward>;

}  // namespace op

/// IndexError for an id outside [0, V) (on CUDA its row is NaN: a kernel cannot throw).
inline Tensor embedding(const Tensor& weight, const Tensor& ids) {
  return call(op::Embedding{}, {weight, ids});
}

}  // namespace tessera
