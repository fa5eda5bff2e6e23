// SPDX-License-Identifier: Apache-2.0
// Requests of signals reach all ranks as a sum of codes. The code of a request exceeds the sum of
// lesser requests of all ranks, so the sum decides, and all ranks do the same.
#include "tessera/train/ranks/stop_signals.h"

#include <atomic>
#include <csignal>
#include <string_view>
#include <unistd.h>

namespace tessera::train {
namespace {

constexpr int64_t kSave = 1, kTerminate = int64_t{1} << 20, kInterrupt = int64_t{1} << 40;
constexpr std::string_view kSaid =
    "\nSIGINT: the run ends after this step, when it has saved; a second one ends it at once\n";

// The only state that the handlers change; once per process, for the ranks of all its threads.
std::atomic<SignalRequest>& pending() {
  static std::atomic<SignalRequest> request{SignalRequest::none};
  static_assert(std::atomic<SignalRequest>::is_always_lock_free);
  return request;
}

void raise_to(SignalRequest request) {
  SignalRequest before = pending().load();
  while (before < request && !pending().compare_exchange_weak(before, request)) {
  }
}

void on_save(int) { raise_to(SignalRequest::save); }

void on_terminate(int) { raise_to(SignalRequest::terminate); }

void on_interrupt(int signal) {
  if (pending().load() == SignalRequest::interrupt) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);  // when the handler has returned
  }
  raise_to(SignalRequest::interrupt);
}

void say_and_interrupt(int signal) {
  if (pending().load() != SignalRequest::interrupt)
    (void)!::write(STDERR_FILENO, kSaid.data(), kSaid.size());
  on_interrupt(signal);
}

void handle(int signal, void (*handler)(int)) {
  pending();  // made before a handler can run
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void install_save_signal() { handle(SIGUSR1, on_save); }

void install_stop_signals(bool says) {
  handle(SIGTERM, on_terminate);
  handle(SIGINT, says ? say_and_interrupt : on_interrupt);
}

void install_interrupt_signal() { handle(SIGINT, on_interrupt); }

void remove_stop_signals() {
  handle(SIGTERM, SIG_DFL);
  handle(SIGINT, SIG_DFL);
}

SignalRequest pending_request() { return pending().load(); }

int64_t request_code() {
  switch (pending_request()) {
    case SignalRequest::none: break;
    case SignalRequest::save: return kSave;
    case SignalRequest::terminate: return kTerminate;
    case SignalRequest::interrupt: return kInterrupt;
  }
  return 0;
}

SignalRequest agreed_request(int64_t codes) {
  // A save request that arrived meanwhile is served by the same save. A stop request remains.
  SignalRequest save = SignalRequest::save;
  if (codes > 0) pending().compare_exchange_strong(save, SignalRequest::none);
  return codes >= kInterrupt   ? SignalRequest::interrupt
         : codes >= kTerminate ? SignalRequest::terminate
         : codes >= kSave      ? SignalRequest::save
                               : SignalRequest::none;
}

}  // namespace tessera::train
