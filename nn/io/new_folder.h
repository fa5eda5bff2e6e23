// SPDX-License-Identifier: Apache-2.0
// A folder that appears complete or not at all: it is filled under another name and then renamed.
// NewFolder begins anew each time; work that goes on after an interruption uses the functions.
#pragma once

#include "tessera/core/api.h"

#include <string>
#include <string_view>

namespace tessera::io {

/// `path` without separators and `/.` at its end, so that `a/` and `a` have one name beside them.
/// IoError, which names `field`: as refuse_existing, or it ends in `..`.
[[nodiscard]] TESSERA_API std::string new_folder_path(std::string path, std::string_view field);
/// IoError, which names `field`: something has that name, be it a link to nothing.
TESSERA_API void refuse_existing(const std::string& path, std::string_view field);
/// Makes the folder `path`, for work that goes on after an interruption, or keeps the one that is
/// there. IoError, which names `field`: a link or a file has that name, so what is written would
/// not be there.
TESSERA_API void unfinished_folder(const std::string& path, std::string_view field);
/// Renames the folder `partial` to `path`, both made durable. IoError, which names `field`: as
/// refuse_existing, or the file system refuses.
TESSERA_API void rename_new_folder(const std::string& partial, const std::string& path,
                                   std::string_view field);

class TESSERA_API NewFolder {
 public:
  /// Makes `path.partial`, in place of one that an interrupted program left. IoError, which names
  /// `field`: as new_folder_path, or the folder cannot be made.
  NewFolder(const std::string& path, std::string field);
  /// Removes it, unless commit() was called.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  /// Where to write.
  [[nodiscard]] const std::string& path() const { return partial_; }
  /// Renames it to the path. IoError: as rename_new_folder.
  void commit();

 private:
  std::string path_, partial_, field_;
  bool committed_ = false;
};

}  // namespace tessera::io
