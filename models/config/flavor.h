// SPDX-License-Identifier: Apache-2.0
// A flavor: a published size of a model family, with its name.
#pragma once

#include "tessera/core/error.h"

#include <span>
#include <string>
#include <string_view>

namespace tessera::models {

template <class Config> struct Flavor {
  std::string_view name;
  Config config;
};

/// ValueError, with the list of flavors, if the name is unknown.
template <class Config>
[[nodiscard]] const Config& find_flavor(std::string_view family,
                                        std::span<const Flavor<Config>> flavors,
                                        std::string_view name) {
  std::string names;
  for (const Flavor<Config>& f : flavors) {
    if (f.name == name) return f.config;
    names += concat(names.empty() ? "" : ", ", f.name);
  }
  fail<ValueError>(family, "there is no flavor \"", name, "\": there are ", names);
}

}  // namespace tessera::models
