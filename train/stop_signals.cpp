// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/stop_signals.h"

#include <atomic>
#include <csignal>

namespace tessera::train {
namespace {

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

SignalRequest agreed_request(World& world) {
  auto request = pending().load();
  if (world.size() > 1) {
    const Tensor all = from_values({static_cast<double>(request)}, {1}, DType::i32);
    world.group().all_reduce(all, ReduceOp::max)->wait();
    request = static_cast<SignalRequest>(all.data<int32_t>()[0]);
  }
  // A request that came in between is met by the same save, of the same step. One to end stays.
  SignalRequest save = SignalRequest::save;
  if (request == SignalRequest::save) pending().compare_exchange_strong(save, SignalRequest::none);
  return request;
}

}  // namespace tessera::train
