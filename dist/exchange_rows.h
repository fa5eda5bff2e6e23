// SPDX-License-Identifier: Apache-2.0
// exchange_rows: an all_to_all whose counts are plain data, for rows that ranks send each other
// inside a local_region (tokens to their experts). It is an op, so activation checkpointing can
// keep its result, profilers see it, and its gradient is the exchange back. Ranks need not agree on
// any size: each says what it sends and what it gets.
#pragma once

#include "tessera/core/op.h"
#include "tessera/dist/mesh.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace tessera {
namespace op {

/// x (M, ...) plain -> (rows, ...): the first rows of x go to the ranks of the axis, send[i] to
/// the i-th, and receive[i] come from it, in order; rows beyond what comes are zero. Rows of x
/// beyond what is sent have no gradient. It returns when the exchange has been launched.
struct ExchangeRows {
  Mesh mesh = {};  ///< empty: a rank alone
  std::string axis = {};
  std::vector<int64_t> send = {}, receive = {};
  int64_t rows = 0;
  static constexpr std::string_view name = "exchange_rows";
  static constexpr bool expensive = true;
  static constexpr DTypeSet dtypes = kAllDTypes;
  static constexpr Saves saves = Saves::none();
  static constexpr NotShardable sharding{"its rows are one rank's own: call it in a local_region"};
  auto attributes() const { return std::tuple(axis, text(send), text(receive), rows); }
  MetaList meta(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<ExchangeRows>> samples();

 private:
  static std::string text(const std::vector<int64_t>& counts);
  void launch(const Tensor& x, const Tensor& y) const;
};

}  // namespace op

/// x (M, ...), this rank's own -> (rows, ...) over one axis of `mesh`: send[i] rows to its i-th
/// rank, receive[i] from it. rows -1: as many as come. LayoutError: x is distributed, no such axis.
/// ShapeError: another number of counts than ranks, a negative one, more rows than x (the result)
/// has. Ranks that disagree on what they send each other end in CollectiveMismatch.
[[nodiscard]] TESSERA_API Tensor exchange_rows(const Tensor& x, Mesh mesh, std::string_view axis,
                                               std::vector<int64_t> send,
                                               std::vector<int64_t> receive, int64_t rows = -1);

}  // namespace tessera
