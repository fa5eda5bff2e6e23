// SPDX-License-Identifier: Apache-2.0
// The time that a part of a run took, for the lines that it prints.
#pragma once

#include <chrono>

namespace tessera::train {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace tessera::train
