// SPDX-License-Identifier: Apache-2.0
// Files: whole or not at all. What is written goes to a neighbour first, is synced, and then takes
// its name. Sizes and checksums of what was written, free space, and the lock that keeps two runs
// out of one folder.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace tessera::io {

struct FileSum {
  uint64_t bytes = 0;
  uint32_t crc32c = 0;
  bool operator==(const FileSum&) const = default;
};

/// The file's bytes; IoError if it cannot be read or holds more than `most` (a device may never
/// end).
TESSERA_API std::string read_file(const std::string& path,
                                  size_t most = std::numeric_limits<size_t>::max());
/// Size and checksum, read in pieces; IoError if it cannot be read.
TESSERA_API FileSum sum_of_file(const std::string& path);
/// Writes what `produce` gives to `write`; readers see the old file or the whole new one. IoError
/// names the cause. Gives the sum of what was written.
TESSERA_API FileSum write_file_atomically(
    const std::string& path,
    const std::function<void(const std::function<void(std::string_view)>& write)>& produce);
TESSERA_API FileSum write_file_atomically(const std::string& path, std::string_view bytes);
/// Makes the names in the folder durable. IoError if it cannot.
TESSERA_API void sync_folder(const std::string& path);
/// Makes the folder and proves that files can be written in it; IoError otherwise.
TESSERA_API void require_writable_folder(const std::string& path, std::string_view field);
/// IoError, with both figures, unless the file system of `folder` has `bytes` free.
TESSERA_API void require_space(const std::string& folder, uint64_t bytes, std::string_view where);

/// A folder that is this run's alone while the object lives, also if the process is killed. On a
/// file system without locks it keeps nobody out.
class TESSERA_API FolderLock {
 public:
  /// Makes the folder where it is missing. IoError, which names the holder, if it is locked; as
  /// require_writable_folder.
  FolderLock(const std::string& folder, std::string_view field);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace tessera::io
