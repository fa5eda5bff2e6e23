// SPDX-License-Identifier: Apache-2.0
// Reads documents from files: a text file is one document, a line of a JSONL file is one, and both
// may be compressed with gzip. Invalid UTF-8 is an error, since no tokenizer could reproduce it.
#pragma once

#include "tessera/core/api.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

struct DataFolder {
  struct PassedOver {
    std::string path;
    std::string_view why;  ///< "links"
  };
  std::vector<std::string> files;       ///< to read
  std::vector<PassedOver> passed_over;  ///< files and folders that are not read
  /// A line for people: how many files were taken and how many were not, by reason, with names.
  [[nodiscard]] std::string text(const std::string& folder) const;
};
/// Data files below `folder`, of the formats of data_kinds.h, sorted by path. Passed over: links
/// (so no loop and no file twice), hidden files and folders, folders named `build`, other suffixes,
/// what is no file, and what may not be read. IoError if it cannot be listed.
TESSERA_API DataFolder data_files(const std::string& folder);

/// Calls `document` with each non-empty document, in order. `field` is the JSONL field of the text.
/// Returns early after a stop request. IoError: cannot be read. DataError, with line and
/// byte: not gzip, truncated, not UTF-8, not JSON, no such field.
TESSERA_API void read_documents(const std::string& path, const std::string& field,
                                const std::function<void(std::string_view)>& document,
                                const std::stop_token& stop = {});

/// Calls `line` with each line that is not blank, without its end, and its number from 1. Returns
/// early after a stop request. IoError, DataError as read_documents; also a line longer than
/// `most_bytes` (give or take a block).
TESSERA_API void read_lines(const std::string& path,
                            const std::function<void(std::string_view text, int64_t number)>& line,
                            const std::stop_token& stop = {},
                            size_t most_bytes = std::numeric_limits<size_t>::max());

}  // namespace tessera::train
