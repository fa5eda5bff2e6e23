// SPDX-License-Identifier: Apache-2.0
// Rows of a fine-tuning set: JSONL of prompts with completions, or of conversations. An example is
// a document of its own, with positions from 0; examples are packed once, when the set is read, and
// never cut by a row. Only what the assistant says has targets.
#pragma once

#include "tessera/train/chat/chat_encoder.h"
#include "tessera/train/data/rows.h"

#include <cstdint>
#include <memory>
#include <stop_token>

namespace tessera::train {

/// The encoder of `chat_template`; `tokenizer` must outlive it. ConfigError: the template is
/// unknown or does not fit the tokenizer. DataError: its file, as parse_chat_template.
[[nodiscard]] TESSERA_API ChatEncoder chat_encoder_of(const DataConfig& config,
                                                      const Tokenizer& tokenizer);

/// Throws what can be known before the data is read: as chat_encoder_of, and ConfigError: a field
/// that has no use for such data is given; DataError: a data file that is no JSONL.
TESSERA_API void check_fine_tuning(const DataFiles& files, const DataConfig& config,
                                   const BatchPlan& plan, const Tokenizer& tokenizer);

/// What a token of a set takes in memory: its id, and whether it is of an answer.
inline constexpr int64_t kFineTuningTokenBytes = sizeof(int32_t) + sizeof(uint8_t);

/// Reads the whole set, which is kept in memory with kFineTuningTokenBytes per token. An example
/// longer than seq_len + 1 tokens is cut, left out or refused, as `long_examples` says; one without
/// a target is left out. Null after a stop request. IoError, DataError: as read_lines and
/// parse_example, a member of a line that no template writes, such as `tools`, and no example left.
[[nodiscard]] TESSERA_API std::unique_ptr<const RowSource> fine_tuning_rows(
    const DataFiles& files, const DataConfig& config, const BatchPlan& plan,
    const Tokenizer& tokenizer, int threads, const std::stop_token& stop = {});

}  // namespace tessera::train
