// SPDX-License-Identifier: Apache-2.0
// Which special tokens stand around a document of text: the words of a field, by default what the
// tokenizer says.
#pragma once

#include "tessera/train/tokenizer/tokenizer.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::train {

/// What a document begins and ends with: ids of tokens; -1: none.
struct DocumentTokens {
  int64_t begin = -1, end = -1;
  bool operator==(const DocumentTokens&) const = default;
};

/// The word for what the tokenizer says: documents begin with begin_id() if texts do, and end with
/// end_id() if there is one.
inline constexpr const char* kTokensOfTokenizer = "auto";
/// That word, `both`, `begin`, `end` and `none`.
[[nodiscard]] TESSERA_API std::vector<std::string> document_token_words();
/// The field of a run with one of the words, for errors.
inline constexpr const char* kDocumentTokensField = "--dataloader.document_tokens";
/// Help of a field that has one of the words.
inline constexpr const char* kDocumentTokensHelp =
    "special tokens around each document of text: auto: what the tokenizer says, its begin (bos) "
    "unless add_bos_token is false, and its end (eos) if it has one; both, begin, end or none of "
    "them";

/// What `words` mean for a tokenizer. ConfigError, which names `field`: other words, or a token
/// that the tokenizer does not have.
[[nodiscard]] TESSERA_API DocumentTokens document_tokens(const std::string& words,
                                                         const Tokenizer& tokenizer,
                                                         const std::string& field);
/// Whether documents begin with the tokenizer's begin_id(); false without one.
[[nodiscard]] TESSERA_API bool documents_begin(const std::string& words,
                                               const Tokenizer& tokenizer);
/// Whether documents with these tokens are what `words` ask for.
[[nodiscard]] TESSERA_API bool are_asked_for(const DocumentTokens& tokens,
                                             const std::string& words);
/// For people: `documents begin with <s> (1) and end with </s> (2)`.
[[nodiscard]] TESSERA_API std::string text_of(const DocumentTokens& tokens,
                                              const Tokenizer& tokenizer);

}  // namespace tessera::train
