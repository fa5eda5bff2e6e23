// SPDX-License-Identifier: Apache-2.0
// Signals of a run: SIGTERM and SIGINT (Ctrl-C) request to save and stop, SIGUSR1 to save and
// continue. The handlers only record the request; the ranks check between steps.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>

namespace tessera::train {

/// A later one takes precedence.
enum class SignalRequest : uint8_t { none, save, terminate, interrupt };
[[nodiscard]] constexpr bool stops(SignalRequest request) {
  return request >= SignalRequest::terminate;
}

/// Installs the handler of SIGUSR1, for the rest of the process.
TESSERA_API void install_save_signal();
/// Installs the handlers of SIGTERM and SIGINT, which otherwise end the process; once more or on
/// another thread changes nothing. A process that `says` so prints a line on SIGINT. A second
/// SIGINT ends the process.
TESSERA_API void install_stop_signals(bool says);
/// Installs the handler of SIGINT alone, which prints no line.
TESSERA_API void install_interrupt_signal();
/// From now on SIGTERM and SIGINT end the process again.
TESSERA_API void remove_stop_signals();
/// The request to this process that is not served yet.
[[nodiscard]] TESSERA_API SignalRequest pending_request();
/// pending_request() as a number that ranks sum over all ranks.
[[nodiscard]] TESSERA_API int64_t request_code();
/// The request of a sum of codes, the same on all ranks. A save request then counts as served: the
/// caller must save next, or say that it cannot.
[[nodiscard]] TESSERA_API SignalRequest agreed_request(int64_t codes);

}  // namespace tessera::train
