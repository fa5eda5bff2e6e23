// SPDX-License-Identifier: Apache-2.0
// A container may see its control group at the root or at its path on the host, so a group is
// looked for at its path and at every path above it; the least free of all of them counts.
#include "tessera/train/memory/free_memory.h"

#include "tessera/core/error.h"
#include "tessera/train/monitor/metrics.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <unistd.h>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using Number = std::optional<int64_t>;

// The number after `key` in the first line that begins with it: `MemAvailable:  1024 kB`.
Number number_after(const fs::path& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    std::istringstream rest(line.substr(key.size()));
    int64_t value = 0;
    if (rest >> value) return value;
    return {};
  }
  return {};
}

// The files of a control group, by version.
struct GroupFiles {
  const char *limit, *usage, *inactive, *active;
};
constexpr GroupFiles kV1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ",
                         "total_active_file "};
constexpr GroupFiles kV2{"memory.max", "memory.current", "inactive_file ", "active_file "};

void limit_by(FreeMemory& least, const fs::path& group, const GroupFiles& files) {
  constexpr int64_t kNoLimit = int64_t{1} << 60;  // v1 writes the largest number of whole pages
  const Number limit = number_after(group / files.limit, ""),
               usage = number_after(group / files.usage, "");
  if (!limit || !usage || *limit >= kNoLimit) return;
  const fs::path stat = group / "memory.stat";
  const int64_t cache =
      number_after(stat, files.inactive).value_or(0) + number_after(stat, files.active).value_or(0);
  const int64_t left = std::max<int64_t>(0, *limit - *usage + std::min(cache, *usage));
  if (left >= least.host) return;
  least.host = left;
  least.host_source = concat("a cgroup limit of ", byte_count(*limit));
}

// The group at `path` below `mount`, and all above it.
void limit_by_all(FreeMemory& least, const fs::path& mount, const fs::path& path,
                  const GroupFiles& files) {
  fs::path group = mount;
  limit_by(least, group, files);
  for (const fs::path& part : path.relative_path()) {
    group /= part;
    limit_by(least, group, files);
  }
}

void limit_by_groups(FreeMemory& least, const fs::path& root) {
  const fs::path mount = root / "sys/fs/cgroup";
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // hierarchy:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string path = line.substr(second + 1),
                      controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers == ",,") limit_by_all(least, mount, path, kV2);
    else if (controllers.find(",memory,") != controllers.npos)
      limit_by_all(least, mount / "memory", path, kV1);
  }
}

}  // namespace

FreeMemory free_memory(const fs::path& root) {
  FreeMemory least;
  if (const Number available = number_after(root / "proc/meminfo", "MemAvailable:")) {
    least.host = *available * 1024;
    least.host_source = "the memory available on this machine";
  }
  limit_by_groups(least, root);
  const Number space = number_after(root / "proc/self/limits", "Max address space"),
               pages = number_after(root / "proc/self/statm", "");
  if (space && pages) {
    least.process = std::max<int64_t>(0, *space - *pages * sysconf(_SC_PAGESIZE));
    least.process_source = concat("an address space limit (ulimit -v) of ", byte_count(*space));
  }
  return least;
}

}  // namespace tessera::train
