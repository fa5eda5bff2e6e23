// SPDX-License-Identifier: Apache-2.0
// Opens a wrapper library (libtessera_mpi.so, libtessera_nccl.so) on first use: next to the library
// or program with this code, then by the linker's search.
#pragma once

#include "tessera/core/error.h"

#include <string>

namespace tessera {

struct OpenedLibrary {
  void* symbol = nullptr;  ///< the entry, a function that returns the table; null: see `why_not`
  std::string why_not;
};
OpenedLibrary open_library(const std::string& library, const char* entry);

/// The table of an opened library. LaunchError: it cannot be opened, with `remedy`, or it is of
/// another build.
template <class Api>
const Api& table_of(const OpenedLibrary& opened, int version, const char* library,
                    const char* remedy) {
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

}  // namespace tessera
