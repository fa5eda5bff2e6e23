// SPDX-License-Identifier: Apache-2.0
// Requests of signals reach all ranks as a sum of codes. The code of one stop request exceeds the
// sum of save requests of all ranks, so the sum decides, and all ranks do the same.
#include "tessera/train/ranks/stop_signals.h"

#include <atomic>
#include <csignal>

namespace tessera::train {
namespace {

constexpr int64_t kStop = int64_t{1} << 32;  // above the sum of all save requests

// The only state that the handlers change; once per process, for the ranks of all its threads.
std::atomic<SignalRequest>& pending() {
  static std::atomic<SignalRequest> request{SignalRequest::none};
  static_assert(std::atomic<SignalRequest>::is_always_lock_free);
  return request;
}

// A stop request takes precedence over a save request.
void on_signal(int signal) {
  SignalRequest none = SignalRequest::none;
  if (signal == SIGTERM) pending().store(SignalRequest::save_and_stop);
  else pending().compare_exchange_strong(none, SignalRequest::save);
}

}  // namespace

void install_stop_signals(bool saves) {
  pending();  // made before a handler can run
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  if (saves) sigaction(SIGTERM, &action, nullptr);
}

int64_t request_code() {
  switch (pending().load()) {
    case SignalRequest::save: return 1;
    case SignalRequest::save_and_stop: return kStop;
    default: return 0;
  }
}

SignalRequest agreed_request(int64_t codes) {
  // A save request that arrived meanwhile is served by the same save. A stop request remains.
  SignalRequest save = SignalRequest::save;
  if (codes > 0) pending().compare_exchange_strong(save, SignalRequest::none);
  return codes >= kStop ? SignalRequest::save_and_stop
         : codes > 0    ? SignalRequest::save
                        : SignalRequest::none;
}

}  // namespace tessera::train
