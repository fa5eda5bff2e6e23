// SPDX-License-Identifier: Apache-2.0
// The device that each rank of a host computes on.
#pragma once

#include "tessera/core/device.h"
#include "tessera/dist/launch/launch.h"

#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// What a program asks for: `--device auto | cpu | cuda`.
enum class DeviceChoice : uint8_t { automatic, cpu, cuda };
/// The values by the names that users write.
TESSERA_API std::vector<std::pair<std::string, DeviceChoice>> device_choices();

/// The device of the rank `local_rank` of the `local_ranks` ranks of this host: `cuda:local_rank`,
/// or the CPU. `automatic` takes CUDA where each of these ranks has a device of its own. Only
/// `automatic` with a driver, and `cuda`, open the CUDA library. ConfigError: `cuda` where it
/// cannot be used, which says why, or with more ranks than devices.
[[nodiscard]] TESSERA_API Device rank_device(DeviceChoice choice, int local_rank, int local_ranks);
/// The same before the ranks of `launch` start: of this process, or of the first of its threads.
/// Where there is a driver and `automatic` yet takes the CPU, the first rank of each host warns why
/// on standard error.
[[nodiscard]] TESSERA_API Device rank_device(DeviceChoice choice, const Launch& launch);

}  // namespace tessera
