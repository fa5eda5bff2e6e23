// SPDX-License-Identifier: Apache-2.0
// A file is durable when it is synced, renamed and its folder is synced, in this order. The lock of
// a folder is the system's (flock), which ends with its process in any case; the text in `.lock`
// only tells others who holds it. What is written has a name that others can guess, so no link
// there is followed; what is read is opened without waiting, because a FIFO may have no writer.
#include "tessera/nn/io/files.h"

#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/nn/io/crc32c.h"
#include "tessera/nn/io/utf8.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <utility>

namespace tessera::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAside = ".tmp.";  // between a file's name and its writer's process

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

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

struct stat status_of(const Descriptor& file, const std::string& path) {
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) io_error("open", path);
  return info;
}

// For files that cannot replace what has their name.
[[noreturn]] void refuse_link(const std::string& path) {
  std::error_code ignored;
  fail<IoError>("file", path, " is a symbolic link to ", fs::read_symlink(path, ignored).string(),
                ", which is not followed; remove it");
}

// Until a pipe or device has data or ends.
void wait_for_data(int fd, const std::string& path) {
  constexpr int kSeconds = 10;
  pollfd one{fd, POLLIN, 0};
  int ready = 0;
  do ready = ::poll(&one, 1, kSeconds * 1000);
  while (ready < 0 && errno == EINTR);
  if (ready < 0) io_error("read", path);
  if (ready == 0) fail<IoError>("file", path, " gave nothing for ", kSeconds, " s; give a file");
}

}  // namespace

std::string below(const std::string& folder, std::string_view name) {
  return (fs::path(folder) / name).string();
}

int open_file(const std::string& path, std::string_view where) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file.ok()) fail<IoError>(where, "cannot open ", path, ": ", std::strerror(errno));
  const struct stat info = status_of(file, path);
  if (!S_ISREG(info.st_mode))
    fail<IoError>(where, path, " is ", kind_of(info.st_mode), ", expected a file");
  return file.release();
}

int create_file(const std::string& path) {
  ::unlink(path.c_str());
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0) io_error("create", path);
  return fd;
}

int open_to_append(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && errno == ELOOP) refuse_link(path);
  if (fd < 0) io_error("open", path);
  return fd;
}

std::string read_file(const std::string& path, size_t most) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file.ok()) io_error("open", path);
  const struct stat info = status_of(file, path);
  const bool endless = most == std::numeric_limits<size_t>::max();
  if (S_ISDIR(info.st_mode) || (endless && !S_ISREG(info.st_mode)))
    fail<IoError>("file", path, " is ", kind_of(info.st_mode), ", expected a file");
  std::string bytes(std::min(static_cast<size_t>(info.st_size), most), '\0');
  size_t used = 0;
  for (;;) {  // a pipe or a growing file may hold more than stat says
    if (used > most) fail<IoError>("file", path, " holds more than ", counted(most, "byte"));
    if (used == bytes.size()) bytes.resize(bytes.size() + 4096);
    const ssize_t n = ::read(file.get(), bytes.data() + used, bytes.size() - used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      wait_for_data(file.get(), path);
      continue;
    }
    if (n < 0) io_error("read", path);
    if (n == 0) break;
    used += static_cast<size_t>(n);
  }
  if (used == 0 && S_ISFIFO(info.st_mode))
    fail<IoError>("file", path, " is a FIFO that nobody writes to; give a file");
  bytes.resize(used);
  return bytes;
}

FileSum sum_of_file(const std::string& path) {
  const Descriptor file(open_file(path, "file"));
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

AtomicFile::AtomicFile(std::string path, FileMode mode)
    : path_(std::move(path)), aside_(concat(path_, kAside, ::getpid())), fd_(create_file(aside_)) {
  if (!mode || ::fchmod(fd_, *mode) == 0) return;
  const int error = errno;
  ::close(fd_);
  ::unlink(aside_.c_str());
  errno = error;
  io_error("set the permissions of", aside_);
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!renamed_) ::unlink(aside_.c_str());
}

void AtomicFile::write(std::string_view bytes) { write_all(fd_, bytes, aside_); }

void AtomicFile::write_front(std::string_view bytes) {
  if (::lseek(fd_, 0, SEEK_SET) != 0) io_error("seek in", aside_);
  write_all(fd_, bytes, aside_);
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) io_error("sync", aside_);
  if (::close(std::exchange(fd_, -1)) != 0) io_error("close", aside_);
  if (::rename(aside_.c_str(), path_.c_str()) != 0) io_error("rename to", path_);
  renamed_ = true;
  sync_folder(fs::path(path_).parent_path());  // the new name is durable once its folder is
}

void write_file_atomically(
    const std::string& path,
    const std::function<void(const std::function<void(std::string_view)>& write)>& produce,
    FileMode mode) {
  AtomicFile file(path, mode);
  produce([&](std::string_view bytes) { file.write(bytes); });
  file.commit();
}

void write_file_atomically(const std::string& path, std::string_view bytes) {
  write_file_atomically(path, [&](const auto& write) { write(bytes); });
}

void remove_unfinished(const std::string& folder, std::span<const char* const> names) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const size_t aside = name.rfind(kAside), digits = aside + kAside.size();
    if (aside == std::string::npos || digits == name.size() ||
        name.find_first_not_of("0123456789", digits) != std::string::npos ||
        std::ranges::find(names, std::string_view(name).substr(0, aside)) == names.end())
      continue;
    std::error_code ignored;
    fs::remove(at->path(), ignored);
  }
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

std::string make_folder_of(const std::string& file, std::string_view field) {
  const std::string folder = fs::path(file).parent_path().string();
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error)
    fail<IoError>(field, "cannot make the folder ", folder, " of ", file, ": ", error.message());
  return folder.empty() ? "." : folder;
}

void require_space(const std::string& folder, uint64_t bytes, std::string_view where) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) io_error("ask for the free space of", folder);
  const uint64_t free = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  if (free < bytes) {
    fail<IoError>(where, folder, " has no room: it needs ", counted(bytes, "byte"), ", and ", free,
                  " are free; make room or give another folder");
  }
}

FolderLock::FolderLock(const std::string& folder, std::string_view field) {
  require_writable_folder(folder, field);
  const std::string path = (fs::path(folder) / ".lock").string();
  Descriptor file(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644));
  if (!file.ok() && errno == ELOOP) refuse_link(path);
  if (!file.ok()) io_error("create", path);
  // The text would overwrite a file that also has another name.
  if (const struct stat info = status_of(file, path); !S_ISREG(info.st_mode) || info.st_nlink > 1)
    fail<IoError>("file", path, " is not a lock that a run made; remove it");
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    const std::string holder = concat("process ", ::getpid(), " on ", host);
    if (::ftruncate(file.get(), 0) != 0) io_error("write", path);
    write_all(file.get(), holder, path);
  } else if (errno == EWOULDBLOCK) {
    std::string holder(300, '\0');
    holder.resize(static_cast<size_t>(
        std::max<ssize_t>(0, ::pread(file.get(), holder.data(), holder.size(), 0))));
    fail<IoError>(field, "folder ", folder, " is used by another run (", excerpt(holder),
                  "); wait until it ends or give another folder");
  }
  fd_ = file.release();
}

FolderLock::~FolderLock() { ::close(fd_); }

}  // namespace tessera::io
