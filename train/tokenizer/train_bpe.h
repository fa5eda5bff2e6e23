// SPDX-License-Identifier: Apache-2.0
// Trains byte-level BPE tokenizers: from the 256 bytes, the most frequent pair of neighbours within
// the words of a text becomes a new token, again and again.
#pragma once

#include "tessera/train/tokenizer/pre_tokenizer.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera::train {

struct BpeTraining {
  int64_t vocabulary = 0;  ///< tokens in all: marks, the 256 bytes, and merged ones
  std::string split = {};  ///< a name of split_names(); empty: the first
  std::string begin = "<|begin_of_text|>", end = "<|end_of_text|>";
};

class TESSERA_API BpeTrainer {
 public:
  /// ValueError: too small a vocabulary, or an unknown split.
  explicit BpeTrainer(const BpeTraining& options);
  /// Names of the splits into words, those of families of the field.
  static std::vector<std::string> split_names();
  /// Counts the words of a document.
  void add(std::string_view document);
  /// Distinct words so far.
  [[nodiscard]] size_t words() const { return counts_.size(); }
  /// tokenizer.json and tokenizer_config.json of a tokenizer with this vocabulary; a smaller one if
  /// the text has too few pairs. Equal texts give equal files.
  [[nodiscard]] std::vector<TokenizerFile> train() const;

 private:
  BpeTraining options_;
  PreTokenizer pre_tokenizer_;
  PreTokenizer::Buffers buffers_;
  std::unordered_map<std::string, int64_t> counts_;
};

}  // namespace tessera::train
