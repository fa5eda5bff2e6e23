// SPDX-License-Identifier: Apache-2.0
// What signals ask of a run: SIGTERM to save and end, SIGUSR1 to save and go on. The handlers only
// note it; the ranks ask between steps.
#pragma once

#include "tessera/core/api.h"
#include "tessera/dist/world.h"

namespace tessera::train {

enum class SignalRequest : uint8_t { none, save, save_and_stop };

/// From now on this process's SIGTERM and SIGUSR1 are requests. Called once, by the program.
TESSERA_API void install_stop_signals();
/// What a signal to any of the ranks' processes has asked since the last call; the same on all
/// ranks, each of which calls it. One small collective where there are several.
[[nodiscard]] TESSERA_API SignalRequest agreed_request(World& world);

}  // namespace tessera::train
