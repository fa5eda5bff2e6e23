// SPDX-License-Identifier: Apache-2.0
// Opens the CUDA library and refuses unusable cases: another library, one with a second copy of the
// core, no device.
#include "tessera/core/cuda_loader_impl.h"
#include "tessera/core/error.h"
#include "tessera/core/process.h"

#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <vector>

namespace tessera {
namespace {
constexpr const char* kLibrary = "libtessera_cuda.so";

std::vector<std::string> candidates() {
  if (const char* given = std::getenv("TESSERA_CUDA_LIBRARY"); given && *given) return {given};
  return library_paths(kLibrary);
}
}  // namespace

CudaLoader::CudaLoader(const Process* process) {
  void* library = nullptr;
  for (const std::string& path : candidates()) {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library) break;
    why_not_ = dlerror();
    // That this one cannot be opened says more than that there is none elsewhere.
    std::error_code unknown;
    if (std::filesystem::exists(path, unknown)) break;
  }
  if (!library) return;
  auto version = reinterpret_cast<int (*)()>(dlsym(library, "tessera_cuda_version"));
  auto entry = reinterpret_cast<CudaBackend* (*)()>(dlsym(library, "tessera_cuda_backend"));
  if (!entry || !version) {
    why_not_ = "it is not Tessera's CUDA library";
    return;
  }
  if (version() != kCudaVersion) {
    Dl_info found{};
    const bool known = dladdr(reinterpret_cast<void*>(entry), &found) && found.dli_fname;
    why_not_ = concat(known ? found.dli_fname : kLibrary, " is of another version of Tessera (its ",
                      "interface is ", version(), ", expected ", kCudaVersion,
                      "): build and install both together");
    return;
  }
  CudaBackend* backend = entry();
  if (backend->process() != process) {
    why_not_ = "it found a second copy of Tessera: link the shared libtessera.so to use CUDA";
    return;
  }
  if (backend->device_count() == 0) {
    why_not_ = backend->why_no_device();
    return;
  }
  backend_ = backend;
}

CudaBackend& CudaLoader::backend() const {
  if (!backend_) fail<DeviceError>("cuda", "CUDA cannot be used: ", why_not_);
  return *backend_;
}

const Ref<Allocator>& CudaLoader::allocator(int device) const {
  const int count = backend().device_count();
  if (device < 0 || device >= count)
    fail<DeviceError>("cuda", "there is no device cuda:", device, "; found ", count);
  return backend_->allocator(device);
}

}  // namespace tessera
