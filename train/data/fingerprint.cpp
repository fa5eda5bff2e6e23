// SPDX-License-Identifier: Apache-2.0
// The pieces of a large file lie at fixed places: the first and the last bytes, where files grow
// and are cut, and six between them.
#include "tessera/train/data/fingerprint.h"

#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/nn/io/crc32c.h"
#include "tessera/train/data/token_source.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <sys/stat.h>
#include <unistd.h>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPieces = 8, kPiece = uint64_t{1} << 15, kWhole = kPieces * kPiece;

[[noreturn]] void cannot_read(const std::string& path) {
  fail<IoError>("data", "cannot read ", path, ": ", std::strerror(errno));
}

// Continues the checksum with [from, from + size) of the file, or less if it ends before.
uint32_t sum_of(int fd, uint64_t from, uint64_t size, uint32_t sum, const std::string& path) {
  std::string bytes(size, '\0');
  uint64_t used = 0;
  while (used < size) {
    const ssize_t n =
        ::pread(fd, bytes.data() + used, size - used, static_cast<off_t>(from + used));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) cannot_read(path);
    if (n == 0) break;
    used += static_cast<uint64_t>(n);
  }
  return io::crc32c({bytes.data(), used}, sum);
}

void sample(int fd, const std::string& path, DataFile& file) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) cannot_read(path);
  file.modified =
      std::max<int64_t>(0, int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec);
  file.bytes = static_cast<uint64_t>(info.st_size);
  if (!file.sampled()) {
    file.crc32c = sum_of(fd, 0, file.bytes, 0, path);
    return;
  }
  const uint64_t gap = (file.bytes - kPiece) / (kPieces - 1);
  for (uint64_t i = 0; i < kPieces; ++i) {
    const uint64_t from = i + 1 < kPieces ? i * gap : file.bytes - kPiece;
    file.crc32c = sum_of(fd, from, kPiece, file.crc32c, path);
  }
}

DataFile fingerprint_of(const std::string& path, const std::string& name) {
  DataFile file{.name = printable(name)};
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) cannot_read(path);
  struct Close {
    int fd;
    ~Close() { ::close(fd); }
  } const close{fd};
  sample(fd, path, file);
  return file;
}

}  // namespace

bool DataFile::sampled() const { return bytes > kWhole; }

bool same_data(const DataFile& a, const DataFile& b) {
  return a.name == b.name && a.bytes == b.bytes && a.crc32c == b.crc32c &&
         (!a.sampled() || a.modified == b.modified);
}

std::string DataFile::text() const {
  return fmt::format("{}, checksum {:08x}", counted(bytes, "byte"), crc32c);
}

DataFingerprint fingerprint_data(const std::string& path, const std::string& field) {
  DataFingerprint all;
  for (const std::string& file : find_data(path, field).paths) {
    const fs::path name =
        file == path ? fs::path(file).filename() : fs::path(file).lexically_relative(path);
    all.push_back(fingerprint_of(file, name.string()));
  }
  return all;
}

std::vector<std::string> data_differences(const DataFingerprint& before,
                                          const DataFingerprint& now) {
  std::map<std::string_view, const DataFile*> gone;
  for (const DataFile& file : before) gone[file.name] = &file;
  std::vector<std::string> differences;
  for (const DataFile& file : now) {
    const auto at = gone.find(file.name);
    if (at == gone.end()) {
      differences.push_back(fmt::format("{} is new", file.name));
      continue;
    }
    const DataFile& old = *at->second;
    gone.erase(at);
    if (file.bytes != old.bytes) {
      differences.push_back(
          fmt::format("{} has {}, had {}", file.name, counted(file.bytes, "byte"), old.bytes));
    } else if (file.crc32c != old.crc32c) {
      differences.push_back(fmt::format("{} has the checksum {:08x}, had {:08x}", file.name,
                                        file.crc32c, old.crc32c));
    } else if (file.sampled() && file.modified != old.modified) {
      differences.push_back(fmt::format(
          "{} has another modification time, but the same size and samples", file.name));
    }
  }
  for (const auto& [name, file] : gone) differences.push_back(fmt::format("{} is missing", name));
  return differences;
}

}  // namespace tessera::train
