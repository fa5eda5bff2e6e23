// SPDX-License-Identifier: Apache-2.0
// Opening the CUDA library costs up to a second, so where the choice is automatic the driver, which
// is small, is looked for first.
#include "tessera/dist/launch/rank_device.h"

#include "tessera/core/cuda_backend.h"
#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/core/process.h"

#include <algorithm>
#include <dlfcn.h>
#include <iostream>

namespace tessera {
namespace {

bool has_driver() {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver) (void)dlclose(driver);
  return driver != nullptr;
}

// Why `local_ranks` ranks of this host cannot have a device each; empty where they can.
std::string why_not_cuda(int local_ranks) {
  try {
    const int found = Process::get().cuda().device_count();
    if (found >= local_ranks) return "";
    return concat(counted(local_ranks, "rank"), " of this host see ", counted(found, "device"),
                  ", and each needs one of its own: start fewer ranks, or let each rank see all "
                  "devices (CUDA_VISIBLE_DEVICES)");
  } catch (const DeviceError& error) {
    const std::string_view text = error.what();  // `[cuda] why`
    return std::string(text.substr(text.find(' ') + 1));
  }
}

}  // namespace

std::vector<std::pair<std::string, DeviceChoice>> device_choices() {
  return {
      {"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}};
}

Device rank_device(DeviceChoice choice, int local_rank, int local_ranks) {
  if (choice == DeviceChoice::cpu) return kCpu;
  if (choice == DeviceChoice::automatic && !has_driver()) return kCpu;
  const std::string why_not = why_not_cuda(local_ranks);
  if (why_not.empty()) return cuda(local_rank);
  if (choice == DeviceChoice::automatic) return kCpu;
  fail<ConfigError>("--device", "cuda: ", why_not, "; --device cpu does without");
}

// A launcher that does not say which ranks share a host is asked again when they have met.
Device rank_device(DeviceChoice choice, const Launch& launch) {
  const int ranks = std::max(1, launch.local_size);
  const Device device = rank_device(choice, std::max(0, launch.local_rank), ranks);
  const bool first = launch.local_rank <= 0;
  if (first && choice == DeviceChoice::automatic && device.is_cpu() && has_driver()) {
    std::cerr << concat("warning: [--device] auto takes the CPU: ", why_not_cuda(ranks),
                        "; --device cpu does so without this line\n");
  }
  return device;
}

}  // namespace tessera
