// SPDX-License-Identifier: Apache-2.0
#include "tessera/dist/rendezvous/place_impl.h"
#include "tessera/dist/rendezvous/socket_impl.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <sys/mman.h>
#include <unistd.h>

namespace tessera {
namespace {

struct Stat {
  char state = 0;  // 0: not known
  uint64_t started = 0;
  bool absent = false;
};

// Of /proc/<pid>/stat: the state and, 19 fields later, when it started. The name before them may
// hold anything.
Stat read_stat(int64_t pid) {
  // Where descriptors run out nothing is known: only a file that is not there means no process.
  std::ifstream file(concat("/proc/", pid, "/stat"));
  if (!file && (errno == ENOENT || errno == ESRCH)) return {.absent = true};
  std::string line;
  std::getline(file, line);
  const size_t close = line.rfind(')');
  if (close == std::string::npos) return {};
  std::istringstream fields(line.substr(close + 1));
  Stat stat;
  fields >> stat.state;
  std::string skipped;
  for (int i = 0; i < 18; ++i) fields >> skipped;
  fields >> stat.started;
  return stat;
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::shared_ptr<std::byte> map(const Descriptor& file, size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  return {static_cast<std::byte*>(memory), [bytes](std::byte* p) { munmap(p, bytes); }};
}

}  // namespace

RankPlace RankPlace::own() { return of(getpid()); }

RankPlace RankPlace::of(int64_t pid) {
  std::array<char, 256> text{};
  RankPlace place;
  gethostname(text.data(), text.size() - 1);
  place.hostname = text.data();
  text.fill(0);
  const bool known = readlink("/proc/self/ns/pid", text.data(), text.size() - 1) > 0;
  place.host = concat(first_line("/proc/sys/kernel/random/boot_id"), '/',
                      known ? text.data() : place.hostname.c_str());
  place.pid = pid;
  place.started = read_stat(place.pid).started;
  return place;
}

std::string RankPlace::pack() const {
  return PackedWriter().text(host).text(hostname).put(pid).put(started).bytes();
}

RankPlace RankPlace::unpack(std::string_view bytes) {
  PackedReader in(bytes);
  RankPlace place;
  place.host = in.text();
  place.hostname = in.text();
  place.pid = in.get<int64_t>();
  place.started = in.get<uint64_t>();
  return place;
}

ProcessState process_state(int64_t pid, uint64_t started) {
  const Stat stat = read_stat(pid);
  if (stat.absent) return ProcessState::gone;
  if (stat.state == 0) return ProcessState::running;  // as far as this process can see
  if (stat.state == 'Z' || stat.state == 'X' || stat.started != started) return ProcessState::gone;
  return stat.state == 'T' || stat.state == 't' ? ProcessState::stopped : ProcessState::running;
}

std::shared_ptr<std::byte> shared_memory(Bootstrap& bootstrap, std::span<const int> members,
                                         std::string_view key, std::string_view name, size_t bytes,
                                         Deadline deadline) {
  Descriptor file;
  PackedWriter mine;
  std::string why;
  if (members[0] == bootstrap.rank()) {
    file = Descriptor(memfd_create("tessera", MFD_CLOEXEC));
    if (!file || ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) why = std::strerror(errno);
  }
  mine.text(name).put(static_cast<uint64_t>(bytes)).text(why);
  mine.put(static_cast<int64_t>(getpid())).put(static_cast<int32_t>(file.get()));
  const auto parts = bootstrap.all_gather(members, key, mine.bytes(), deadline);

  int64_t pid = 0;
  int32_t fd = -1;
  for (size_t i = 0; i < parts.size(); ++i) {
    PackedReader in(parts[i]);
    const std::string their_name = in.text();
    const auto their_bytes = in.get<uint64_t>();
    const std::string their_why = in.text();
    if (their_name != name || their_bytes != bytes) {
      fail<CollectiveMismatch>("process_group", "ranks disagree on the group they make: rank ",
                               bootstrap.rank(), ": '", name, "', rank ", members[i], ": '",
                               their_name, "'; make groups in the same order on all ranks");
    }
    if (i > 0) continue;
    if (!their_why.empty())
      fail<StorageError>("process_group", "rank ", members[0], " got no shared memory of ", bytes,
                         " bytes for group '", name, "': ", their_why);
    pid = in.get<int64_t>();
    fd = in.get<int32_t>();
  }
  std::string failed;
  if (members[0] != bootstrap.rank()) {
    file = Descriptor(open(concat("/proc/", pid, "/fd/", fd).c_str(), O_RDWR | O_CLOEXEC));
    if (!file) failed = concat("/proc/", pid, "/fd/", fd, ": ", std::strerror(errno));
  }
  std::shared_ptr<std::byte> memory = file ? map(file, bytes) : nullptr;
  if (!memory && failed.empty()) failed = concat("mmap: ", std::strerror(errno));
  // The owner keeps its descriptor until all have opened it; all learn who could not.
  const auto opened = bootstrap.all_gather(members, concat(key, " mapped"), failed, deadline);
  for (size_t i = 0; i < opened.size(); ++i) {
    if (opened[i].empty()) continue;
    fail<StorageError>("process_group", "rank ", members[i], " cannot map the memory of group '",
                       name, "' that rank ", members[0], " shares: ", opened[i],
                       "; run all ranks of a host as one user, or set TESSERA_TRANSPORT=messages");
  }
  return memory;
}

std::shared_ptr<std::byte> MappedSegments::segment(std::span<const int> world_ranks,
                                                   const std::string& name, int, size_t bytes,
                                                   std::chrono::milliseconds timeout) {
  return shared_memory(*bootstrap_, world_ranks, "segment", name, bytes, deadline_after(timeout));
}

}  // namespace tessera
