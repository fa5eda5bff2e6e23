// SPDX-License-Identifier: Apache-2.0
// Errors as lines among other faults, so that all of them are told at once.
#pragma once

#include "tessera/core/error.h"

#include <string>
#include <vector>

namespace tessera::config {

/// Calls `look` and adds its error of type E, if there is one, to the faults. Whether there was
/// none.
template <class E = ConfigError, class Look>
bool collect(std::vector<std::string>& faults, const Look& look) {
  try {
    look();
    return true;
  } catch (const E& error) {
    faults.emplace_back(error.what());
    return false;
  }
}

}  // namespace tessera::config
