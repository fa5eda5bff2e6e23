// SPDX-License-Identifier: Apache-2.0
#include "tessera/core/error.h"
#include "tessera/dist/library/open_library_impl.h"

#include <dlfcn.h>
#include <filesystem>
#include <vector>

namespace tessera {
namespace {

struct Opened {
  void* symbol = nullptr;
  std::string why_not;
};

Opened open_library(const std::string& library, const char* entry) {
  std::vector<std::string> paths;
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&open_library), &info) && info.dli_fname) {
    // A program found on PATH is known by its bare name alone.
    std::filesystem::path self(info.dli_fname);
    std::error_code unknown;
    if (!self.has_parent_path()) self = std::filesystem::read_symlink("/proc/self/exe", unknown);
    const auto folder = self.parent_path();
    paths.push_back((folder / library).string());
    paths.push_back((folder / ".." / "lib" / library).string());
  }
  paths.push_back(library);
  Opened opened;
  for (const std::string& path : paths) {
    // MPI opens its own plugins, which look for its symbols: they must be global.
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL)) {
      opened.symbol = dlsym(handle, entry);
      if (!opened.symbol) opened.why_not = path + " has no " + entry;
      return opened;
    }
    // The most telling reason is that of a file which is there.
    if (const char* why = dlerror(); opened.why_not.empty() || std::filesystem::exists(path))
      opened.why_not = why;
  }
  return opened;
}

template <class Api>
const Api& checked(const Opened& opened, int version, const char* library, const char* remedy) {
  if (!opened.symbol) {
    fail<LaunchError>("launch", library, " cannot be used: ", opened.why_not, "; ", remedy);
  }
  const Api* api = reinterpret_cast<const Api* (*)()>(opened.symbol)();
  if (api->version != version) {
    fail<LaunchError>("launch", library, " is of another build of Tessera (table ", api->version,
                      ", expected ", version, "): install both from one build");
  }
  return *api;
}

}  // namespace

const TesseraMpiApi& mpi_api() {
  static const Opened opened = open_library("libtessera_mpi.so", "tessera_mpi_api");
  return checked<TesseraMpiApi>(opened, kTesseraMpiVersion, "libtessera_mpi.so",
                                "install MPI (Debian: libopenmpi-dev openmpi-bin) and build "
                                "again, or start without mpirun (`--ranks N`, torchrun, srun)");
}

const TesseraNcclApi& nccl_api() {
  static const Opened opened = open_library("libtessera_nccl.so", "tessera_nccl_api");
  return checked<TesseraNcclApi>(opened, kTesseraNcclVersion, "libtessera_nccl.so",
                                 "install NVIDIA's CUDA toolkit and NCCL (nccl.h, libnccl.so) and "
                                 "build again");
}

}  // namespace tessera
