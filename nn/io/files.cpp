// SPDX-License-Identifier: Apache-2.0
// A file is durable when it is synced, renamed and its folder is synced, in this order. The lock of
// a folder is the system's own (flock), which goes with its process however that ends; the text in
// `.lock` only tells others who holds it.
#include "tessera/nn/io/files.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/crc32c.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <utility>

namespace tessera::io {
namespace {

namespace fs = std::filesystem;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool ok() const { return fd_ >= 0; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  /// Closes now; false if the system reports a late write error.
  [[nodiscard]] bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

[[noreturn]] void io_error(std::string_view what, const std::string& path) {
  fail<IoError>("file", "cannot ", what, " ", path, ": ", std::strerror(errno));
}

void write_all(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) io_error("write", path);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace

std::string read_file(const std::string& path, size_t most) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.ok()) io_error("open", path);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) io_error("open", path);
  if (S_ISDIR(info.st_mode)) fail<IoError>("file", path, " is a folder, expected a file");
  std::string bytes(std::min(static_cast<size_t>(info.st_size), most), '\0');
  size_t used = 0;
  for (;;) {  // a pipe or a growing file may hold more than stat says
    if (used > most) fail<IoError>("file", path, " holds more than ", most, " bytes");
    if (used == bytes.size()) bytes.resize(bytes.size() + 4096);
    const ssize_t n = ::read(file.get(), bytes.data() + used, bytes.size() - used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) io_error("read", path);
    if (n == 0) break;
    used += static_cast<size_t>(n);
  }
  bytes.resize(used);
  return bytes;
}

FileSum sum_of_file(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.ok()) io_error("open", path);
  std::string piece(size_t{1} << 20, '\0');
  FileSum sum;
  for (;;) {
    const ssize_t n = ::read(file.get(), piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) io_error("read", path);
    if (n == 0) return sum;
    const auto size = static_cast<size_t>(n);
    sum.crc32c = crc32c({piece.data(), size}, sum.crc32c);
    sum.bytes += size;
  }
}

FileSum write_file_atomically(
    const std::string& path,
    const std::function<void(const std::function<void(std::string_view)>& write)>& produce) {
  const std::string aside = concat(path, ".tmp.", ::getpid());
  FileSum sum;
  try {
    Descriptor file(::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!file.ok()) io_error("create", aside);
    produce([&](std::string_view bytes) {
      write_all(file.get(), bytes, aside);
      sum.crc32c = crc32c(bytes, sum.crc32c);
      sum.bytes += bytes.size();
    });
    if (::fsync(file.get()) != 0) io_error("sync", aside);
    if (!file.close()) io_error("close", aside);
    if (::rename(aside.c_str(), path.c_str()) != 0) io_error("rename to", path);
  } catch (...) {
    ::unlink(aside.c_str());
    throw;
  }
  sync_folder(fs::path(path).parent_path());  // the new name is durable once its folder is
  return sum;
}

FileSum write_file_atomically(const std::string& path, std::string_view bytes) {
  return write_file_atomically(path, [&](const auto& write) { write(bytes); });
}

void sync_folder(const std::string& path) {
  const Descriptor folder(
      ::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.ok() || ::fsync(folder.get()) != 0) io_error("sync folder", path);
}

void require_writable_folder(const std::string& path, std::string_view field) {
  std::error_code error;
  fs::create_directories(path, error);
  std::string probe = (fs::path(path) / ".probe.XXXXXX").string();
  const int fd = error ? -1 : ::mkstemp(probe.data());
  if (fd < 0) {
    fail<IoError>(field, "cannot write in folder ", path, ": ",
                  error ? error.message() : std::strerror(errno), "; give another folder");
  }
  ::close(fd);
  ::unlink(probe.c_str());
}

void require_space(const std::string& folder, uint64_t bytes, std::string_view where) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) io_error("ask for the free space of", folder);
  const uint64_t free = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  if (free < bytes) {
    fail<IoError>(where, folder, " has no room: ", bytes, " bytes are needed, ", free,
                  " are free; make room or give another folder");
  }
}

FolderLock::FolderLock(const std::string& folder, std::string_view field) {
  require_writable_folder(folder, field);
  const std::string path = (fs::path(folder) / ".lock").string();
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!file.ok()) io_error("create", path);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    const std::string holder = concat("process ", ::getpid(), " on ", host);
    if (::ftruncate(file.get(), 0) != 0) io_error("write", path);
    write_all(file.get(), holder, path);
  } else if (errno == EWOULDBLOCK) {
    std::string holder = read_file(path);
    for (char& c : holder)
      if (c < ' ' || c > '~') c = '?';
    fail<IoError>(field, "folder ", folder, " is used by another run (", holder.substr(0, 300),
                  "); wait until it ends or give another folder");
  }
  fd_ = file.release();
}

FolderLock::~FolderLock() { ::close(fd_); }

}  // namespace tessera::io
