// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/io/new_folder.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/files.h"

#include <filesystem>
#include <utility>

namespace tessera::io {
namespace {

namespace fs = std::filesystem;

// Without the separators at its end, so that `a/` and `a` have one name beside them.
std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

void refuse_existing(const std::string& path, const std::string& field) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(path, error)))
    fail<IoError>(field, path, " exists already; remove it or give another name");
}

}  // namespace

NewFolder::NewFolder(const std::string& path, std::string field)
    : path_(without_slash(path)), partial_(path_ + ".partial"), field_(std::move(field)) {
  refuse_existing(path_, field_);
  std::error_code error;
  const fs::path parent = fs::path(path_).parent_path();
  if (!parent.empty()) fs::create_directories(parent, error);
  if (!error) fs::remove_all(partial_, error);
  if (error || !fs::create_directory(partial_, error)) {
    fail<IoError>(field_, "cannot create ", partial_, ": ",
                  error ? error.message() : "it exists already", "; give another folder");
  }
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(partial_, ignored);
}

void NewFolder::commit() {
  sync_folder(partial_);
  refuse_existing(path_, field_);
  std::error_code error;
  fs::rename(partial_, path_, error);
  if (error)
    fail<IoError>(field_, "cannot rename ", partial_, " to ", path_, ": ", error.message());
  committed_ = true;
  sync_folder(fs::path(path_).parent_path().string());
}

}  // namespace tessera::io
