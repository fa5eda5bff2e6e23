// SPDX-License-Identifier: Apache-2.0
// Documents out of files: a text file is one, a line of a JSONL file is one, and both may be
// compressed by gzip. What is not UTF-8 is an error, since no tokenizer could give it back.
#pragma once

#include "tessera/core/api.h"

#include <functional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

enum class DataFormat { text, jsonl, npy };

/// By the name: .jsonl, .ndjson and .json hold a document a line, .npy tokens, all else text; .gz
/// may follow. DataError for .npy.gz, which cannot be mapped.
TESSERA_API DataFormat format_of(const std::string& path);

/// Files below `folder` that data comes from, sorted by path: text files (.h .cpp .cu .cuh .md .txt
/// .py .cmake), .jsonl and .ndjson, each also with .gz, and .npy. Hidden ones, `build` and links
/// are left out. IoError if it cannot be listed.
TESSERA_API std::vector<std::string> data_files(const std::string& folder);

/// Gives each document that is not empty to `document`, in order. `field` holds the text of a JSONL
/// line. Returns early once a stop is asked for. IoError: cannot be read. DataError, with line and
/// byte: not gzip, cut short, not UTF-8, not JSON, no such field.
TESSERA_API void read_documents(const std::string& path, const std::string& field,
                                const std::function<void(std::string_view)>& document,
                                const std::stop_token& stop = {});

}  // namespace tessera::train
