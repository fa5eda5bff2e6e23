// SPDX-License-Identifier: Apache-2.0
// Opening the CUDA library costs up to a second, so where the choice is automatic the driver, which
// is small, is looked for first.
#include "tessera/dist/launch/rank_device.h"

#include "tessera/core/cuda_backend.h"
#include "tessera/core/error.h"
#include "tessera/core/process.h"

#include <algorithm>
#include <dlfcn.h>

namespace tessera {
namespace {

constexpr std::string_view kField = "--device";

bool has_driver() {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver) (void)dlclose(driver);
  return driver != nullptr;
}

// The number of CUDA devices.
int usable_devices() {
  try {
    return Process::get().cuda().device_count();
  } catch (const DeviceError& error) {
    const std::string_view text = error.what();  // `[cuda] why`
    fail<ConfigError>(kField, "cuda: ", text.substr(text.find(' ') + 1),
                      ": give --device cpu, or auto to use a GPU where there is one");
  }
}

}  // namespace

std::vector<std::pair<std::string, DeviceChoice>> device_choices() {
  return {
      {"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}};
}

Device rank_device(DeviceChoice choice, int local_rank, int local_ranks) {
  if (choice == DeviceChoice::cpu) return kCpu;
  if (choice == DeviceChoice::automatic) {
    const bool enough = has_driver() && Process::get().cuda_available() &&
                        Process::get().cuda().device_count() >= local_ranks;
    return enough ? cuda(local_rank) : kCpu;
  }
  if (const int found = usable_devices(); found < local_ranks) {
    fail<ConfigError>(
        kField, "cuda: ", local_ranks, " ranks of this host see ", found,
        found == 1 ? " device" : " devices",
        ", and each needs one of its own: start fewer ranks, or let each rank see all "
        "devices (CUDA_VISIBLE_DEVICES)");
  }
  return cuda(local_rank);
}

// A launcher that does not say which ranks share a host is asked again when they have met.
Device rank_device(DeviceChoice choice, const Launch& launch) {
  return rank_device(choice, std::max(0, launch.local_rank), std::max(1, launch.local_size));
}

}  // namespace tessera
