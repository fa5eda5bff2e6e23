// SPDX-License-Identifier: Apache-2.0
// Where tokens come from, as one array: text, read once and held in memory at two or four bytes a
// token, or .npy files, mapped. Also where documents start in it.
#pragma once

#include "tessera/train/data/tokenizer.h"

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace tessera::train {

/// Read by one thread at a time.
class TESSERA_API TokenSource {
 public:
  TokenSource() = default;
  TokenSource(const TokenSource&) = delete;
  TokenSource& operator=(const TokenSource&) = delete;
  virtual ~TokenSource() = default;

  [[nodiscard]] virtual int64_t tokens() const = 0;
  /// 0: a stream, to be cut anywhere; else it is rows of so many tokens.
  [[nodiscard]] virtual int64_t row_length() const = 0;
  /// 0: not known before all is read.
  [[nodiscard]] virtual int64_t documents() const = 0;
  /// Tokens [from, from + to.size()), and into `starts` 1 where one begins a document. DataError: a
  /// token beyond the vocabulary.
  virtual void read(int64_t from, std::span<int64_t> to, std::span<uint8_t> starts) const = 0;
};

struct SourceOptions {
  std::string text_field;  ///< of JSONL
  int64_t begin_id = -1;   ///< token that starts a document of .npy data; -1: none
  int64_t vocabulary = 0;  ///< ids are below it
};

/// What a path names: itself, or the data of a folder.
struct DataFiles {
  std::vector<std::string> paths;
  bool npy = false;
};
/// IoError: cannot be read. DataError: not there, a folder without data, or one of text and .npy.
/// `field` is what the errors name.
TESSERA_API DataFiles find_data(const std::string& path, const std::string& field);

/// Reads all of it; small .npy files are checked against the vocabulary, large ones as they are
/// read. Null if a stop was asked for. IoError, DataError: read_documents and NpyFile say which;
/// also .npy files of several shapes, and no token at all.
TESSERA_API std::unique_ptr<TokenSource> open_source(const DataFiles& files,
                                                     const Tokenizer& tokenizer,
                                                     const SourceOptions& options,
                                                     const std::stop_token& stop = {});

}  // namespace tessera::train
