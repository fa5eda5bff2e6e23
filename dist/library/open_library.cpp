// SPDX-License-Identifier: Apache-2.0
// Search path of our wrapper libraries, and the error if none can be opened.
#include "tessera/dist/library/open_library_impl.h"

#include <dlfcn.h>
#include <filesystem>
#include <vector>

namespace tessera {

OpenedLibrary open_library(const std::string& library, const char* entry) {
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
  OpenedLibrary opened;
  for (const std::string& path : paths) {
    // MPI opens its own plugins, which look for its symbols: they must be global.
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL)) {
      opened.symbol = dlsym(handle, entry);
      if (!opened.symbol) opened.why_not = path + " has no " + entry;
      return opened;
    }
    // Reports the error of an existing file, if any.
    if (const char* why = dlerror(); opened.why_not.empty() || std::filesystem::exists(path))
      opened.why_not = why;
  }
  return opened;
}

}  // namespace tessera
