// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/io/new_folder.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/files.h"
#include "tessera/nn/io/utf8.h"

#include <cerrno>
#include <filesystem>
#include <sys/stat.h>
#include <system_error>
#include <utility>

namespace tessera::io {

namespace fs = std::filesystem;

std::string new_folder_path(std::string path, std::string_view field) {
  while (path.size() > 1 && (path.ends_with('/') || path.ends_with("/."))) path.pop_back();
  refuse_existing(path, field);
  if (fs::path(path).filename() == "..")
    fail<IoError>(field, path, " has no name of its own; give the name of a new folder");
  return path;
}

void refuse_existing(const std::string& path, std::string_view field) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(path, error)))
    fail<ConfigError>(field, excerpt(path), " exists already; remove it or give another name");
}

void unfinished_folder(const std::string& path, std::string_view field) {
  std::error_code error;
  if (const fs::path parent = fs::path(path).parent_path(); !parent.empty())
    fs::create_directories(parent, error);
  // Unlike a look before, mkdir cannot be overtaken by who makes a link.
  if (!error && ::mkdir(path.c_str(), 0777) != 0) error.assign(errno, std::generic_category());
  if (!error) return;
  const fs::file_status found =
      error == std::errc::file_exists ? fs::symlink_status(path, error) : fs::file_status();
  if (fs::is_directory(found)) return;
  if (fs::exists(found)) {
    fail<IoError>(field, path, " is ", fs::is_symlink(found) ? "a symbolic link" : "no folder",
                  ", but is written in before it gets its name; remove it or give another name");
  }
  fail<IoError>(field, "cannot write in folder ", path, ": ", error.message(),
                "; give another folder");
}

void rename_new_folder(const std::string& partial, const std::string& path,
                       std::string_view field) {
  sync_folder(partial);
  refuse_existing(path, field);
  std::error_code error;
  fs::rename(partial, path, error);
  if (error) fail<IoError>(field, "cannot rename ", partial, " to ", path, ": ", error.message());
  sync_folder(fs::path(path).parent_path().string());
}

NewFolder::NewFolder(const std::string& path, std::string field)
    : path_(new_folder_path(path, field)), partial_(path_ + ".partial"), field_(std::move(field)) {
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
  rename_new_folder(partial_, path_, field_);
  committed_ = true;
}

}  // namespace tessera::io
