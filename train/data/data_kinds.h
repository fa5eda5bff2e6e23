// SPDX-License-Identifier: Apache-2.0
// The kinds of data and the formats of their files, a row each: which files of a folder are taken,
// how they open, the help and the errors follow from them. To add a format: a row in
// data_kinds.cpp, and if it has no kind yet, the kind's row there and its source.
#pragma once

#include "tessera/core/api.h"

#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

class TokenSource;
class Tokenizer;
struct DataFiles;
struct SourceOptions;

/// How tokens come from files.
struct DataKind {
  std::string_view name;         ///< as in "the file is ..."
  bool is_text = false;          ///< a tokenizer makes the tokens, now
  bool knows_documents = false;  ///< where they begin; other kinds need begin_id
  std::unique_ptr<TokenSource> (*open)(const DataFiles& files, const Tokenizer& tokenizer,
                                       const SourceOptions& options,
                                       const std::stop_token& stop) = nullptr;
};
TESSERA_API extern const DataKind kText, kTokenIds, kPreparedData;

struct DataFormat {
  std::vector<std::string_view> suffixes;  ///< the first names the format
  const DataKind* kind = nullptr;
  std::string_view help;           ///< a phrase: `a text file`
  bool lines = false;              ///< a document per line, as JSON
  bool may_be_gzip = false;        ///< `.gz` may follow the suffix
  size_t in_folders = size_t(-1);  ///< so many of the suffixes are looked for in folders
  /// Whether a file begins as it must, for a suffix that other programs give to anything.
  bool (*begins)(const std::string& path) = nullptr;
};
[[nodiscard]] TESSERA_API std::span<const DataFormat> data_formats();
/// The format by file name; text if no suffix is known. DataError: compressed, and of a format that
/// is read in place.
[[nodiscard]] TESSERA_API const DataFormat& format_of(const std::string& path);
/// Whether an entry of a folder has the name of a format. A regular file is opened where the name
/// is not enough.
[[nodiscard]] TESSERA_API bool is_data_file(const std::string& path, bool is_regular);
/// `a text file, .jsonl (both also .gz), ...` and the suffixes of all: `.h .cpp ...`.
[[nodiscard]] TESSERA_API std::string formats_help();
[[nodiscard]] TESSERA_API std::string formats_suffixes();

// The kinds' sources. Text as tokens in memory, of no use after a stop request; files of token ids;
// a folder with an index, made by an equal tokenizer.
std::unique_ptr<TokenSource> text_source(const DataFiles& files, const Tokenizer& tokenizer,
                                         const SourceOptions& options, const std::stop_token& stop);
std::unique_ptr<TokenSource> array_source(const DataFiles& files, const Tokenizer& tokenizer,
                                          const SourceOptions& options,
                                          const std::stop_token& stop);
std::unique_ptr<TokenSource> prepared_source(const DataFiles& files, const Tokenizer& tokenizer,
                                             const SourceOptions& options,
                                             const std::stop_token& stop);

}  // namespace tessera::train
