// SPDX-License-Identifier: Apache-2.0
// What the files of a tokenizer say, read as untrusted input.
#pragma once

#include "tessera/train/tokenizer/added_tokens.h"
#include "tessera/train/tokenizer/bpe.h"
#include "tessera/train/tokenizer/pre_tokenizer.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <string_view>

namespace tessera::train {

inline constexpr std::string_view kTokenizerJson = "tokenizer.json", kVocabJson = "vocab.json",
                                  kMergesTxt = "merges.txt",
                                  kTokenizerConfig = "tokenizer_config.json",
                                  kSpecialTokensMap = "special_tokens_map.json",
                                  kAddedTokens = "added_tokens.json";

/// A byte-level or SentencePiece-style BPE tokenizer.
struct BpeParts {
  BpeModel model;
  std::vector<AddedToken> added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::vector<std::string> names;   ///< of each id, as the files have it; empty: no token
  std::vector<std::string> splits;  ///< patterns that split text, one after another
  bool other_steps = false;         ///< text is prepared by more than normal form C and `splits`
  std::vector<std::string> bytes;   ///< that each id stands for in a decoded text
  bool drops_first_space = false;   ///< decoding drops the space that encoding added
  int64_t begin = -1, end = -1;
  bool begins_documents = true;  ///< documents begin with `begin`
  bool reads_older = true;       ///< special_tokens_map.json and added_tokens.json have a say
};

/// DataError as make_tokenizer.
BpeParts parse_tokenizer_files(std::span<const TokenizerFile> files);

/// The 256 characters that stand for bytes in byte-level vocabularies, as UTF-8.
std::array<std::string, 256> byte_characters();

}  // namespace tessera::train
