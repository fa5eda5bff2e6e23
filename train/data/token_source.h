// SPDX-License-Identifier: Apache-2.0
// Source of tokens, as one array: text, read once and stored in memory with two or four bytes per
// token, or files of token ids that are read in place, plain ones or prepared data. Also the starts
// of documents.
#pragma once

#include "tessera/train/data/data_kinds.h"
#include "tessera/train/tokenizer/document_tokens.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

/// Used by one thread at a time.
class TESSERA_API TokenSource {
 public:
  TokenSource() = default;
  TokenSource(const TokenSource&) = delete;
  TokenSource& operator=(const TokenSource&) = delete;
  virtual ~TokenSource() = default;

  [[nodiscard]] virtual int64_t tokens() const = 0;
  /// Tokens per row; 0: one stream without rows.
  [[nodiscard]] virtual int64_t row_length() const = 0;
  /// 0: unknown until all data is read.
  [[nodiscard]] virtual int64_t documents() const = 0;
  /// Around each document; none: token ids that nobody here has put together.
  [[nodiscard]] virtual std::optional<DocumentTokens> around() const { return std::nullopt; }
  /// Reads tokens [from, from + to.size()) and sets `starts` to 1 where a document begins.
  /// DataError: a token beyond the vocabulary.
  virtual void read(int64_t from, std::span<int64_t> to, std::span<uint8_t> starts) const = 0;
  /// Tokens [from, from + count), as far as there are any, will be read soon: a source that reads
  /// files in place asks the system for them.
  virtual void will_need(int64_t /*from*/, int64_t /*count*/) const {}
};

struct SourceOptions {
  std::string text_field;  ///< JSONL field of the text
  int64_t begin_id = -1;   ///< token id that begins a document of arrays; -1: none
  int64_t vocabulary = 0;  ///< ids are below it
  int threads = 1;         ///< that tokenise text
  std::string document_tokens = kTokensOfTokenizer;  ///< around each document of text
};

/// Data files of a path: the file itself, or those of a folder; of prepared data the index, which
/// has the checksums of all others.
struct DataFiles {
  std::vector<std::string> paths;
  const DataKind* kind = &kText;
  std::string listing = {};  ///< as DataFolder::text; empty for a file
};
/// The line that every command prints of a folder that it reads: `data files: 1 taken (a.jsonl);
/// passed over: 1 links (b.jsonl)`. `what`: whose, such as `validation`; `folder`: which one, if
/// several are read.
[[nodiscard]] TESSERA_API std::string data_files_line(std::string_view listing,
                                                      std::string_view what = "data",
                                                      std::string_view folder = {});

/// IoError: cannot be read. DataError: missing, neither a file nor a folder, a folder
/// without data, or one with text and arrays.
/// Errors name `field`.
TESSERA_API DataFiles find_data(const std::string& path, const std::string& field);

/// Reads all data; small arrays are checked against the vocabulary now, large ones when they are
/// read. Null after a stop request. IoError, DataError: as read_documents, ArrayFile and
/// parse_index; also arrays of different shapes, data without tokens, and data prepared with
/// another tokenizer or other document tokens. ConfigError: as document_tokens.
TESSERA_API std::unique_ptr<TokenSource> open_source(const DataFiles& files,
                                                     const Tokenizer& tokenizer,
                                                     const SourceOptions& options,
                                                     const std::stop_token& stop = {});

}  // namespace tessera::train
