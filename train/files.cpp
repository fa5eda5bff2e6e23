// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/files.h"

#include "tessera/core/error.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace tessera::train {
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

std::string read_file(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.ok()) io_error("open", path);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) io_error("open", path);
  if (S_ISDIR(info.st_mode)) fail<IoError>("file", path, " is a folder, expected a file");
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t used = 0;
  for (;;) {  // a pipe or a growing file may hold more than stat says
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

void write_file_atomically(
    const std::string& path,
    const std::function<void(const std::function<void(std::string_view)>& write)>& produce) {
  const std::string aside = concat(path, ".tmp.", ::getpid());
  try {
    Descriptor file(::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!file.ok()) io_error("create", aside);
    produce([&](std::string_view bytes) { write_all(file.get(), bytes, aside); });
    if (::fsync(file.get()) != 0) io_error("sync", aside);
    if (!file.close()) io_error("close", aside);
    if (::rename(aside.c_str(), path.c_str()) != 0) io_error("rename to", path);
  } catch (...) {
    ::unlink(aside.c_str());
    throw;
  }
  // The new name is durable once its folder is.
  const fs::path folder = fs::path(path).parent_path();
  Descriptor parent(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent.ok() || ::fsync(parent.get()) != 0) io_error("sync the folder of", path);
}

void write_file_atomically(const std::string& path, std::string_view bytes) {
  write_file_atomically(path, [&](const auto& write) { write(bytes); });
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

}  // namespace tessera::train
