// SPDX-License-Identifier: Apache-2.0
// The tokenizer's keys of a GGUF file.
#pragma once

#include "tessera/train/convert/gguf_file.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <vector>

namespace tessera::train {

/// Of a byte-level BPE tokenizer whose way to split text llama.cpp knows, or a SentencePiece-style
/// one whose merges follow from scores of tokens; ids beyond its vocabulary are tokens without use.
/// Empty: of any other one.
[[nodiscard]] TESSERA_API std::vector<GgufKey> gguf_tokenizer(const Tokenizer& tokenizer,
                                                              int64_t vocabulary);

}  // namespace tessera::train
