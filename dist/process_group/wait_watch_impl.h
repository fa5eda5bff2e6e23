// SPDX-License-Identifier: Apache-2.0
// WaitWatch: the watchdog of a rank's waits. Each wait has a deadline and ends by it with a typed
// error. One that has not ended five seconds later never will: the stacks of all threads go to
// stderr, and the wait ends with CollectiveTimeout where it still can, or the process ends where
// its program wants that. Only time in which the watchdog itself ran counts, so that a process that
// was stopped by a debugger or Ctrl-Z lives on.
#pragma once

#include "tessera/dist/lock/mutex_impl.h"

#include <chrono>
#include <condition_variable>
#include <string>
#include <thread>
#include <vector>

namespace tessera {

class WaitWatch {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kPatience{5000};

  explicit WaitWatch(int world_rank) : world_rank_(world_rank) {}
  ~WaitWatch() { stop(); }
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;

  /// Starts its thread. With `ends_process`, a wait that never ends makes the process exit with 1.
  void start(bool ends_process, std::chrono::milliseconds patience = kPatience);
  void stop();

  /// A wait of the calling thread, while it exists.
  class Wait {
   public:
    /// `what` is a literal; `number` is shown behind it if it is not 0.
    Wait(WaitWatch& watch, const char* what, uint64_t number, Clock::time_point deadline);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;
    /// CollectiveTimeout once the watchdog has given the wait up.
    void check() const {
      if (given_up_.load(std::memory_order_relaxed)) raise();
    }

   private:
    friend class WaitWatch;
    [[noreturn]] void raise() const;
    [[nodiscard]] std::string text() const;

    WaitWatch& watch_;
    const char* what_;
    uint64_t number_;
    Clock::time_point deadline_;
    std::chrono::nanoseconds late_{0};
    std::atomic<bool> given_up_{false};
  };

 private:
  void run();
  void report(const std::string& waits) const;

  const int world_rank_;
  bool ends_process_ = false, stop_ = false;
  std::chrono::milliseconds patience_ = kPatience;
  Mutex mutex_;
  std::condition_variable_any wake_;
  std::vector<Wait*> waits_;
  std::thread thread_;
};

}  // namespace tessera
