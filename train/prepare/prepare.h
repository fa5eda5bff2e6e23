// SPDX-License-Identifier: Apache-2.0
// Prepares text for training: tokenises it into a folder of shards with an index (data_index.h),
// which training maps. A batch of text and a shard's starts of documents are in memory, never the
// data. The bytes are the same for any number of threads, and whether or not the preparation was
// interrupted.
#pragma once

#include "tessera/train/data/data_index.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::train {

struct PrepareOptions {
  std::string out = {};                 ///< new folder
  std::vector<std::string> paths = {};  ///< files or folders of text
  std::string text_field = "text";
  std::string document_tokens = kTokensOfTokenizer;  ///< around each document
  int64_t shard_tokens = int64_t{1} << 27;
  int threads = 1;
  /// Gets lines for people: which files of a folder are read and which are not, and what documents
  /// begin and end with.
  std::function<void(const std::string& line)> say = {};
};

struct PrepareProgress {
  int64_t bytes = 0, all_bytes = 0;  ///< of the sources; compressed text counts when it is done
  int64_t tokens = 0, documents = 0;
  size_t resumed_shards = 0;  ///< made before an interruption
};

/// Writes `out.partial` and renames it when it is whole. What an interrupted preparation of the
/// same text finished there is kept. Errors as find_data and read_documents, and ConfigError: as
/// document_tokens, of --document_tokens; DataError: no text; IoError: `out` exists, `out.partial`
/// is a link, another process prepares it, or it cannot be written: what is finished stays for the
/// next try.
TESSERA_API DataIndex prepare_data(const PrepareOptions& options, const Tokenizer& tokenizer,
                                   const std::function<void(const PrepareProgress&)>& progress);

}  // namespace tessera::train
