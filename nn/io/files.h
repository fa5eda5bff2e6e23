// SPDX-License-Identifier: Apache-2.0
// Atomic file writes: data goes to a temporary file first, is synced, and then renamed. Also sizes
// and checksums, free space, and the lock that prevents two runs in one folder.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tessera::io {

/// A number of bytes and their checksum.
struct FileSum {
  uint64_t bytes = 0;
  uint32_t crc32c = 0;
  bool operator==(const FileSum&) const = default;
};

/// The path of a file in a folder.
[[nodiscard]] TESSERA_API std::string below(const std::string& folder, std::string_view name);

/// Opens a file for reading; the caller closes the descriptor. IoError, which begins with `where`:
/// cannot be opened, or is a folder, FIFO, socket or device. Never waits for a FIFO's writer.
[[nodiscard]] TESSERA_API int open_file(const std::string& path, std::string_view where);
/// Creates an empty file for writing in place of any file or link of this name, which is not
/// followed; the caller closes the descriptor.
[[nodiscard]] TESSERA_API int create_file(const std::string& path);
/// Opens an existing file for writing at its end; the caller closes the descriptor. IoError: cannot
/// be opened, or is a symbolic link.
[[nodiscard]] TESSERA_API int open_to_append(const std::string& path);
/// The file's bytes; IoError if it cannot be read or is larger than `most`. With `most` it may be a
/// pipe or device, which may never end: IoError if a FIFO has no writer or nothing comes for 10 s.
TESSERA_API std::string read_file(const std::string& path,
                                  size_t most = std::numeric_limits<size_t>::max());
/// Size and checksum, read in pieces; IoError if it cannot be read.
TESSERA_API FileSum sum_of_file(const std::string& path);
/// Permissions of a new file, as chmod takes them; none: what the umask leaves of 0644.
using FileMode = std::optional<unsigned>;
/// A file that appears whole, under its name, or not at all. Every function throws IoError, which
/// names the cause.
class TESSERA_API AtomicFile {
 public:
  /// Creates a temporary file beside `path`, which remove_unfinished removes if this process is
  /// killed.
  explicit AtomicFile(std::string path, FileMode mode = {});
  /// Removes it, unless commit() was called.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view bytes);
  /// Overwrites the first bytes, which were written before; nothing can be written after it.
  void write_front(std::string_view bytes);
  /// Syncs and closes the file, renames it to `path` and syncs the folder.
  void commit();

 private:
  std::string path_, aside_;
  int fd_ = -1;
  bool renamed_ = false;
};

/// Writes the bytes that `produce` passes to `write`; readers see the old file or the complete new
/// one. IoError names the cause.
TESSERA_API void write_file_atomically(
    const std::string& path,
    const std::function<void(const std::function<void(std::string_view)>& write)>& produce,
    FileMode mode = {});
TESSERA_API void write_file_atomically(const std::string& path, std::string_view bytes);
/// Removes what killed processes left of such files with these names. Only while nobody writes one
/// there.
TESSERA_API void remove_unfinished(const std::string& folder, std::span<const char* const> names);
/// Syncs the folder, so that its file names are durable. IoError if it cannot.
TESSERA_API void sync_folder(const std::string& path);
/// Creates the folder and checks that files can be written in it; IoError otherwise.
TESSERA_API void require_writable_folder(const std::string& path, std::string_view field);
/// Creates the parent folder of a new file if it does not exist, and returns its path: "." for a
/// name alone. IoError, which begins with the field, if it cannot.
TESSERA_API std::string make_folder_of(const std::string& file, std::string_view field);
/// IoError, with both figures, unless the file system of `folder` has `bytes` free.
TESSERA_API void require_space(const std::string& folder, uint64_t bytes, std::string_view where);

/// An exclusive lock of a folder during the object's lifetime, released when the process ends in
/// any way. On a file system without locks it has no effect.
class TESSERA_API FolderLock {
 public:
  /// Creates the folder if needed. IoError, which names the holder, if it is locked; other errors
  /// as require_writable_folder.
  FolderLock(const std::string& folder, std::string_view field);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace tessera::io
