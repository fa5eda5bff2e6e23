// SPDX-License-Identifier: Apache-2.0
// The kinds of sources that open_source chooses from.
#pragma once

#include "tessera/train/data/token_source.h"

namespace tessera::train {

/// Text as tokens in memory. Of no use after a stop request.
std::unique_ptr<TokenSource> text_source(const DataFiles& files, const Tokenizer& tokenizer,
                                         const SourceOptions& options, const std::stop_token& stop);
/// Files of token ids.
std::unique_ptr<TokenSource> array_source(const DataFiles& files, const SourceOptions& options,
                                          const std::stop_token& stop);
/// A folder with an index, made by an equal tokenizer.
std::unique_ptr<TokenSource> prepared_source(const DataFiles& files, const Tokenizer& tokenizer,
                                             const SourceOptions& options);

}  // namespace tessera::train
