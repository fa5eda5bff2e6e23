// SPDX-License-Identifier: Apache-2.0
// The one place that knows every kind of rows, and those of a source of tokens. A stream is cut
// every seq_len tokens, and a row reads one token more, the last target. Where documents stand
// apart, a token that ends one has no target.
#include "tessera/train/data/rows.h"

#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/train/data/fine_tuning_rows.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tessera::train {
namespace {

class TokenRows final : public RowSource {
 public:
  TokenRows(std::unique_ptr<TokenSource> source, const DataFiles& files, const DataConfig& config,
            const BatchPlan& plan, const Tokenizer& tokenizer)
      : source_(std::move(source)),
        seq_len_(plan.seq_len),
        stride_(plan.seq_len),
        documents_apart_(config.packing == "documents") {
    info_.files = static_cast<int64_t>(files.paths.size());
    info_.listing = files.listing;
    info_.documents = source_->documents();
    info_.tokens = source_->tokens();
    if (const auto around = source_->around()) info_.document_tokens = text_of(*around, tokenizer);
    if (source_->row_length() > 0) cut_rows(files, plan);
    else cut_stream(files, config, plan);
    const bool joined = source_->row_length() == 0 && info_.documents > 1;
    positions_ = documents_apart_ && (joined || config.begin_id >= 0);
  }

  [[nodiscard]] const DataInfo& info() const override { return info_; }
  [[nodiscard]] bool has_positions() const override { return positions_; }

  [[nodiscard]] int64_t tokens(int64_t index) const override {
    return std::clamp<int64_t>(info_.tokens - index * stride_, 0, seq_len_);
  }
  void make(int64_t index, const RowSpans& row) const override {
    const int64_t from = index * stride_;
    const auto length = static_cast<size_t>(seq_len_);
    std::vector<int64_t> ids(length + 1);
    std::vector<uint8_t> starts(ids.size());
    const auto n = static_cast<size_t>(std::clamp<int64_t>(info_.tokens - from, 0, seq_len_ + 1));
    source_->read(from, std::span(ids).first(n), std::span(starts).first(n));
    std::copy_n(ids.begin(), length, row.tokens.begin());
    std::ranges::fill(row.targets, kNoTarget);
    for (size_t i = 0; i + 1 < n; ++i) {
      // The end of a document does not predict the next document.
      if (!documents_apart_ || starts[i + 1] == 0) row.targets[i] = ids[i + 1];
    }
    int64_t position = 0, document = 0;
    for (size_t i = 0; i < length && positions_; ++i) {
      if (starts[i] != 0 && i > 0) position = 0, ++document;
      row.positions[i] = position++;
      row.documents[i] = document;
    }
  }
  void will_need(int64_t index) const override {
    source_->will_need(index * stride_, seq_len_ + 1);
  }

 private:
  void cut_rows(const DataFiles& files, const BatchPlan& plan) {
    const int64_t length = source_->row_length();
    if (length != plan.seq_len + 1) {
      fail<DataError>(plan.path_field, files.paths[0], " holds rows of ", counted(length, "token"),
                      ", but a seq_len of ", plan.seq_len, " needs rows of ", plan.seq_len + 1,
                      ", its inputs and the token after them; set seq_len to ", length - 1,
                      " or make rows of that length");
    }
    stride_ = length;
    info_.windows = info_.tokens / length;
  }
  void cut_stream(const DataFiles& files, const DataConfig& config, const BatchPlan& plan) {
    const int64_t t = plan.seq_len, targets = info_.tokens - 1;
    info_.windows = plan.evaluation ? (targets + t - 1) / t : targets / t;
    if (info_.windows >= 1) return;
    fail<DataError>(plan.path_field, config.path, " holds ", counted(info_.tokens, "token"),
                    files.paths.size() > 1 ? " in all" : "", ", too few for one window of seq_len ",
                    plan.evaluation ? 1 : t,
                    " and the token after it; give more data or a smaller seq_len");
  }

  std::unique_ptr<TokenSource> source_;
  DataInfo info_;
  int64_t seq_len_, stride_;
  bool documents_apart_, positions_ = false;
};

}  // namespace

std::unique_ptr<const RowSource> open_rows(const DataFiles& files, const DataConfig& config,
                                           const BatchPlan& plan, const Tokenizer& tokenizer,
                                           int threads, const std::stop_token& stop) {
  if (config.format != "text")
    return fine_tuning_rows(files, config, plan, tokenizer, threads, stop);
  const SourceOptions options{config.text_field, config.begin_id, plan.vocabulary, threads,
                              config.document_tokens};
  auto source = open_source(files, tokenizer, options, stop);
  if (!source) return nullptr;
  return std::make_unique<TokenRows>(std::move(source), files, config, plan, tokenizer);
}

}  // namespace tessera::train
