// SPDX-License-Identifier: Apache-2.0
// What signals ask of a run: SIGTERM to save and end, SIGUSR1 to save and go on. The handlers only
// note it; the ranks ask between steps.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>

namespace tessera::train {

enum class SignalRequest : uint8_t { none, save, save_and_stop };

/// From now on this process's SIGTERM and SIGUSR1 are requests. Called once, by the program.
TESSERA_API void install_stop_signals();
/// What signals to this process have asked so far, as a number that ranks add up with whatever they
/// exchange.
[[nodiscard]] TESSERA_API int64_t request_code();
/// The request that a sum of codes means, the same on all ranks. One to save is met from here on:
/// the caller saves before anything else.
[[nodiscard]] TESSERA_API SignalRequest agreed_request(int64_t codes);

}  // namespace tessera::train
