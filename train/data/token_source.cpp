// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/data/token_source.h"

#include "tessera/core/error.h"
#include "tessera/train/data/data_index.h"
#include "tessera/train/data/source_kinds_impl.h"
#include "tessera/train/data/text_reader.h"

#include <algorithm>
#include <filesystem>
#include <new>
#include <unistd.h>
#include <utility>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWhere = "data";

}  // namespace

std::string data_files_line(std::string_view listing, std::string_view what,
                            std::string_view folder) {
  return concat(what, " files", folder.empty() ? "" : " of ", folder, ": ", listing);
}

DataFiles find_data(const std::string& path, const std::string& field) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    if (status.type() == fs::file_type::not_found) fail<DataError>(field, path, " does not exist");
    fail<IoError>(field, "cannot access ", path, ": ", error.message());
  }
  const auto require_readable = [&](const std::string& file) {
    if (::access(file.c_str(), R_OK) != 0)
      fail<IoError>(field, "cannot read ", file, ": permission denied");
  };
  if (fs::is_directory(status) && is_prepared(path)) {
    const std::string index = (fs::path(path) / kDataIndexFile).string();
    require_readable(index);
    return {{index}, DataKind::prepared};
  }
  DataFiles files{{path}};
  if (fs::is_directory(status)) {
    DataFolder folder = data_files(path);
    files.listing = folder.text(path);
    files.paths = std::move(folder.files);
    if (files.paths.empty()) {
      fail<DataError>(field, "folder ", path,
                      " holds no text file (.h .cpp .cu .cuh .md .txt .py .cmake), .jsonl or "
                      ".ndjson, also with .gz, no .npy and no .bin of llm.c: ",
                      files.listing);
    }
  } else if (!fs::is_regular_file(status)) {
    fail<DataError>(field, path, " is a FIFO, device or socket, expected a file or a folder");
  }
  const auto kind_of = [](const std::string& p) {
    return format_of(p) == DataFormat::tokens ? DataKind::arrays : DataKind::text;
  };
  files.kind = kind_of(files.paths[0]);
  for (const std::string& file : files.paths) {
    if (kind_of(file) != files.kind) {
      const bool tokens = files.kind == DataKind::arrays;
      fail<DataError>(field, "folder ", path, " holds text, ", tokens ? file : files.paths[0],
                      ", and tokens, ", tokens ? files.paths[0] : file,
                      "; move one of them to another folder");
    }
    require_readable(file);
  }
  return files;
}

std::unique_ptr<TokenSource> open_source(const DataFiles& files, const Tokenizer& tokenizer,
                                         const SourceOptions& options,
                                         const std::stop_token& stop) {
  std::unique_ptr<TokenSource> source;
  try {
    switch (files.kind) {
      case DataKind::text: source = text_source(files, tokenizer, options, stop); break;
      case DataKind::arrays: source = array_source(files, options, stop); break;
      case DataKind::prepared: source = prepared_source(files, tokenizer, options); break;
    }
  } catch (const std::bad_alloc&) {
    fail<DataError>(
        kWhere, "the text of ", files.paths[0], files.paths.size() > 1 ? " and its neighbours" : "",
        " does not fit in memory; `tessera data prepare` makes it files that are read in place");
  }
  if (stop.stop_requested()) return nullptr;
  if (source->tokens() == 0) {
    fail<DataError>(kWhere, files.paths[0],
                    files.paths.size() > 1 ? " and its neighbours are" : " is",
                    " empty; give text");
  }
  return source;
}

}  // namespace tessera::train
