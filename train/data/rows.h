// SPDX-License-Identifier: Apache-2.0
// Rows: the sequences that training takes, made of a data set of any kind. A kind says only how
// many rows an epoch has and what is in each. Order, epochs, the padding of an evaluation to whole
// batches and prefetching are the loader's, so that every kind has them.
#pragma once

#include "tessera/train/data/data.h"
#include "tessera/train/data/token_source.h"

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>

namespace tessera::train {

/// The target of a token that has nothing to predict.
inline constexpr int64_t kNoTarget = -100;

/// Where a row is written: seq_len elements each. `targets` is the token after each, or
/// kNoTarget where there is none to learn. `positions` and `documents` as in Batch; empty unless
/// has_positions().
struct RowSpans {
  std::span<int64_t> tokens, targets, positions, documents;
};

/// Immutable; used by one thread at a time.
class TESSERA_API RowSource {
 public:
  RowSource() = default;
  RowSource(const RowSource&) = delete;
  RowSource& operator=(const RowSource&) = delete;
  virtual ~RowSource() = default;

  /// `windows` is the number of rows of an epoch, at least 1; `batches` is the loader's.
  [[nodiscard]] virtual const DataInfo& info() const = 0;
  /// Whether make() writes positions and documents.
  [[nodiscard]] virtual bool has_positions() const = 0;
  /// Writes row `index` of [0, info().windows): every element of every span. DataError: damaged
  /// data that is found only when it is read.
  virtual void make(int64_t index, const RowSpans& row) const = 0;
  /// How many tokens row `index` has: the first places. What make() writes behind them is padding.
  [[nodiscard]] virtual int64_t tokens(int64_t index) const = 0;
  /// Row `index` will be made soon: a source larger than memory asks the system for it.
  virtual void will_need(int64_t /*index*/) const {}
};

/// The rows of `files`, by their kind: examples packed for fine-tuning, or windows of `seq_len`
/// successive tokens and the token after each, or the rows of a source that has rows. `tokenizer`
/// names tokens for people. Null after a stop request. Errors as open_source, and
/// DataError: too little data for one row.
TESSERA_API std::unique_ptr<const RowSource> open_rows(const DataFiles& files,
                                                       const DataConfig& config,
                                                       const BatchPlan& plan,
                                                       const Tokenizer& tokenizer, int threads,
                                                       const std::stop_token& stop = {});

}  // namespace tessera::train
