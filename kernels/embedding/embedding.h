// SPDX-License-Identifier: Apache-2.0
// embedding: rows of a table by index. A piece of the vocabulary gives zeros for ids of other
// pieces, so that a cut table yields a Partial(sum). Its gradient adds rows in the order of the
// tokens: the same bits on every run.
#pragma once

#include "tessera/core/op.h"
#include "tessera/kernels/pointwise/index_dtype.h"

#include <optional>

namespace tessera {
namespace op {

/// weight (V, D), ids (...) i64 -> (..., D). On a piece, `begin` is its first row and `vocabulary`
/// the global V (0: own). The gradient passes by ids equal to `padding` (-1: none).
struct Embedding {
  int64_t begin = 0, vocabulary = 0, padding = -1;
  static constexpr std::string_view name = "embedding";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::input(0, 1);
  auto attributes() const { return std::tie(begin, vocabulary, padding); }
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

/// Rows of weight (V, D) by ids (...), i64 or i32 -> (..., D). The row `padding_idx`, which may
/// count from the end, gets no gradient; its values are read like any other's. IndexError for an id
/// or a padding_idx outside [0, V) (on CUDA an id's row is NaN: a kernel cannot throw).
TESSERA_API Tensor embedding(const Tensor& weight, const Tensor& ids,
                             std::optional<int64_t> padding_idx = {});

}  // namespace tessera
