// SPDX-License-Identifier: Apache-2.0
// A folder that appears complete or not at all: it is filled under another name and then renamed.
#pragma once

#include "tessera/core/api.h"

#include <string>

namespace tessera::io {

class TESSERA_API NewFolder {
 public:
  /// Makes `path.partial`, in place of one that an interrupted program left. IoError, which names
  /// `field`: `path` exists, or the folder cannot be made.
  NewFolder(const std::string& path, std::string field);
  /// Removes it, unless commit() was called.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  /// Where to write.
  [[nodiscard]] const std::string& path() const { return partial_; }
  /// Renames it to the path. IoError: it cannot, or something has that name by now.
  void commit();

 private:
  std::string path_, partial_, field_;
  bool committed_ = false;
};

}  // namespace tessera::io
