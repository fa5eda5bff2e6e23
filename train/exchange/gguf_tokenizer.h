// SPDX-License-Identifier: Apache-2.0
// The tokenizer's keys of a GGUF file.
#pragma once

#include "tessera/train/exchange/gguf_file.h"
#include "tessera/train/exchange/special_tokens.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <vector>

namespace tessera::train {

/// Ids of special tokens by llama.cpp's names, at any of the last three of which a text ends; below
/// 0: none.
struct GgufMarks {
  int64_t begin = -1, pad = -1, end = -1, end_of_turn = -1, end_of_message = -1;
  int64_t left_out = 0;  ///< ids that end a text beyond these
};
/// What the model's folder said, the tokenizer's marks, and the mark that ends an answer.
[[nodiscard]] TESSERA_API GgufMarks gguf_marks(const SpecialTokensConfig& said,
                                               const Tokenizer& tokenizer, int64_t answer_end);

/// Of a byte-level BPE tokenizer whose way to split text llama.cpp knows, or a SentencePiece-style
/// one whose merges follow from scores of tokens; ids beyond its vocabulary are tokens without use.
/// Empty: of any other one.
[[nodiscard]] TESSERA_API std::vector<GgufKey> gguf_tokenizer(const Tokenizer& tokenizer,
                                                              int64_t vocabulary,
                                                              const GgufMarks& marks);

}  // namespace tessera::train
