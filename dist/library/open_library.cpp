// SPDX-License-Identifier: Apache-2.0
// Opens our wrapper libraries, and says why if none can be opened.
#include "tessera/core/process.h"
#include "tessera/dist/library/open_library_impl.h"

#include <dlfcn.h>
#include <filesystem>

namespace tessera {

OpenedLibrary open_library(const std::string& library, const char* entry) {
  OpenedLibrary opened;
  for (const std::string& path : library_paths(library)) {
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
