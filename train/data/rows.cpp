// SPDX-License-Identifier: Apache-2.0
// The one place that knows every kind of rows.
#include "tessera/train/data/rows.h"

#include "tessera/train/data/fine_tuning_rows.h"

#include <utility>

namespace tessera::train {

std::unique_ptr<const RowSource> open_rows(const DataFiles& files, const DataConfig& config,
                                           const BatchPlan& plan, const Tokenizer& tokenizer,
                                           int threads, const std::stop_token& stop) {
  if (config.format != "text")
    return fine_tuning_rows(files, config, plan, tokenizer, threads, stop);
  const SourceOptions options{config.text_field, config.begin_id, plan.vocabulary, threads,
                              config.document_tokens};
  auto source = open_source(files, tokenizer, options, stop);
  return source ? token_rows(std::move(source), files, config, plan, tokenizer) : nullptr;
}

}  // namespace tessera::train
