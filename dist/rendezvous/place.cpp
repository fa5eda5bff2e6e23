// SPDX-License-Identifier: Apache-2.0
// The boot id and the process-id namespace identify a host; the start time distinguishes a process
// from a later one with the same id.
#include "tessera/core/error.h"
#include "tessera/dist/rendezvous/bootstrap_impl.h"
#include "tessera/dist/rendezvous/place_impl.h"

#include <array>
#include <cerrno>
#include <fstream>
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

}  // namespace tessera
