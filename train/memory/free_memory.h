// SPDX-License-Identifier: Apache-2.0
// The memory that this process could still take: what the machine has, the limits of its control
// groups (containers, Slurm, systemd) and its own limit of address space.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>

namespace tessera::train {

struct FreeMemory {
  static constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  int64_t host = kUnknown;     ///< bytes for all processes of the run on this host
  int64_t process = kUnknown;  ///< bytes for this process alone
  int64_t device = kUnknown;   ///< bytes for the tensors of a rank, which has a device of its own
  /// What limits them: "a cgroup limit of 8.0 GiB".
  std::string host_source = {}, process_source = {}, device_source = {};
};

/// Reads `root`/proc and the control groups (v1 and v2, all that contain this process) of
/// `root`/sys/fs/cgroup. A file cache that the kernel can drop counts as free. What is missing or
/// cannot be read limits nothing.
[[nodiscard]] TESSERA_API FreeMemory free_memory(const std::filesystem::path& root = "/");

}  // namespace tessera::train
