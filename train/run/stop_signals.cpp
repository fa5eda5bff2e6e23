// SPDX-License-Identifier: Apache-2.0
// What signals ask reaches all ranks as a sum of codes. One request to end weighs more than all
// ranks' to save together, so the sum alone says what to do, and all ranks do the same.
#include "tessera/train/run/stop_signals.h"

#include <atomic>
#include <csignal>

namespace tessera::train {
namespace {

constexpr int64_t kStop = int64_t{1} << 32;  // above the sum of all who ask to save

// The one thing that the handlers touch; once per process, for the ranks of all its threads.
std::atomic<SignalRequest>& pending() {
  static std::atomic<SignalRequest> request{SignalRequest::none};
  static_assert(std::atomic<SignalRequest>::is_always_lock_free);
  return request;
}

// Ending outranks going on, whichever comes first.
void on_signal(int signal) {
  SignalRequest none = SignalRequest::none;
  if (signal == SIGTERM) pending().store(SignalRequest::save_and_stop);
  else pending().compare_exchange_strong(none, SignalRequest::save);
}

}  // namespace

void install_stop_signals() {
  pending();  // made before a handler can run
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGUSR1, &action, nullptr);
}

int64_t request_code() {
  switch (pending().load()) {
    case SignalRequest::save: return 1;
    case SignalRequest::save_and_stop: return kStop;
    default: return 0;
  }
}

SignalRequest agreed_request(int64_t codes) {
  // A request that came in between is met by the same save, of the same step. One to end stays.
  SignalRequest save = SignalRequest::save;
  if (codes > 0) pending().compare_exchange_strong(save, SignalRequest::none);
  return codes >= kStop ? SignalRequest::save_and_stop
         : codes > 0    ? SignalRequest::save
                        : SignalRequest::none;
}

}  // namespace tessera::train
