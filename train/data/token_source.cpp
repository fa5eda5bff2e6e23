// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/data/token_source.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/data/data_index.h"
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
  return concat(std::string(what) + " files", folder.empty() ? "" : " of ", folder, ": ", listing);
}

DataFiles find_data(const std::string& path, const std::string& field) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    if (status.type() == fs::file_type::not_found)
      fail<ConfigError>(field, io::excerpt(path), " does not exist");
    fail<IoError>(field, "cannot access ", path, ": ", error.message());
  }
  const auto require_readable = [&](const std::string& file) {
    if (::access(file.c_str(), R_OK) != 0)
      fail<IoError>(field, "cannot read ", file, ": permission denied");
  };
  if (fs::is_directory(status) && is_prepared(path)) {
    const std::string index = (fs::path(path) / kDataIndexFile).string();
    require_readable(index);
    return {{index}, &kPreparedData};
  }
  DataFiles files{{path}};
  if (fs::is_directory(status)) {
    DataFolder folder = data_files(path);
    files.listing = folder.text(path);
    files.paths = std::move(folder.files);
    if (files.paths.empty()) {
      fail<DataError>(field, "folder ", path, " holds no file with data (", formats_suffixes(),
                      ", text and lines also with .gz): ", files.listing);
    }
  } else if (!fs::is_regular_file(status)) {
    fail<DataError>(field, path, " is a FIFO, device or socket, expected a file or a folder");
  }
  files.kind = format_of(files.paths[0]).kind;
  for (const std::string& file : files.paths) {
    if (const DataKind* kind = format_of(file).kind; kind != files.kind) {
      fail<DataError>(field, "folder ", path, " holds ", files.kind->name, ", ", files.paths[0],
                      ", and ", kind->name, ", ", file, "; move one of them to another folder");
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
    source = files.kind->open(files, tokenizer, options, stop);
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
