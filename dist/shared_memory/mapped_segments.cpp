// SPDX-License-Identifier: Apache-2.0
// The first member creates the memory and publishes its descriptor; the others open it through
// /proc, and all learn whether it succeeded everywhere.
#include "tessera/core/message.h"
#include "tessera/dist/rendezvous/socket_impl.h"
#include "tessera/dist/shared_memory/mapped_segments_impl.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace tessera {
namespace {

std::shared_ptr<std::byte> map(const Descriptor& file, size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  return {static_cast<std::byte*>(memory), [bytes](std::byte* p) { munmap(p, bytes); }};
}

}  // namespace

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
      fail<StorageError>("process_group", "rank ", members[0], " got no shared memory of ",
                         counted(bytes, "byte"), " for group '", name, "': ", their_why);
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
