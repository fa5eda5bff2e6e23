// SPDX-License-Identifier: Apache-2.0
// For tests: what an error says.
#pragma once

#include "tessera/core/error.h"

#include <string>

namespace tessera::test {

/// The message of the E that f throws, or "nothing was thrown"; other errors pass.
template <class E = Error, class F> std::string error_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace tessera::test
