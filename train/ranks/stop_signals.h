// SPDX-License-Identifier: Apache-2.0
// Signals of a run: SIGTERM requests to save and stop, SIGUSR1 to save and continue. The handlers
// only record the request; the ranks check between steps.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>

namespace tessera::train {

enum class SignalRequest : uint8_t { none, save, save_and_stop };

/// Installs the handler of SIGUSR1 and, for a run that `saves` checkpoints, that of SIGTERM, which
/// otherwise ends the process. Called once, by the program.
TESSERA_API void install_stop_signals(bool saves);
/// The requests to this process so far, as a number that ranks sum over all ranks.
[[nodiscard]] TESSERA_API int64_t request_code();
/// The request of a sum of codes, the same on all ranks. A save request then counts as served: the
/// caller must save next, or say that it cannot.
[[nodiscard]] TESSERA_API SignalRequest agreed_request(int64_t codes);

}  // namespace tessera::train
