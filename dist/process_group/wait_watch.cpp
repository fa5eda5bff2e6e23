// SPDX-License-Identifier: Apache-2.0
// The thread looks a few times within its patience, and adds to the lateness of each wait at most
// two of these periods: what is longer was no time of this process.
#include "tessera/core/error.h"
#include "tessera/dist/process_group/stacks_impl.h"
#include "tessera/dist/process_group/wait_watch_impl.h"

#include <algorithm>
#include <cstdlib>
#include <unistd.h>

namespace tessera {
namespace {

void say(const std::string& line) { (void)!write(STDERR_FILENO, line.data(), line.size()); }

}  // namespace

WaitWatch::Wait::Wait(WaitWatch& watch, const char* what, uint64_t number,
                      Clock::time_point deadline)
    : watch_(watch), what_(what), number_(number), deadline_(deadline) {
  const std::lock_guard guard(watch_.mutex_);
  watch_.waits_.push_back(this);
}

WaitWatch::Wait::~Wait() {
  const std::lock_guard guard(watch_.mutex_);
  std::erase(watch_.waits_, this);
}

std::string WaitWatch::Wait::text() const {
  return number_ == 0 ? std::string(what_) : concat(what_, " #", number_);
}

void WaitWatch::Wait::raise() const {
  fail<CollectiveTimeout>(text(), "rank ", watch_.world_rank_,
                          " gave up: this wait did not end by its deadline, nor in the time after "
                          "it, which is a fault of Tessera; the stacks are on stderr");
}

void WaitWatch::start(bool ends_process, std::chrono::milliseconds patience) {
  stop();
  ends_process_ = ends_process;
  patience_ = patience;
  stop_ = false;
  thread_ = std::thread([this] { run(); });
}

void WaitWatch::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard guard(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void WaitWatch::run() {
  const auto period = patience_ / 20;
  std::unique_lock guard(mutex_);
  auto last = Clock::now();
  while (!stop_) {
    wake_.wait_for(guard, period);
    const auto now = Clock::now();
    const auto ran = std::min<std::chrono::nanoseconds>(now - last, 2 * period);
    last = now;
    std::string overdue;
    for (Wait* wait : waits_) {
      if (now <= wait->deadline_) continue;
      const bool was_late = wait->late_ >= patience_;
      wait->late_ += ran;
      if (was_late || wait->late_ < patience_) continue;
      overdue += concat(overdue.empty() ? "" : ", ", wait->text());
    }
    if (overdue.empty()) continue;
    guard.unlock();
    report(overdue);  // while they still wait
    guard.lock();
    last = Clock::now();
    for (Wait* wait : waits_)
      wait->given_up_.store(wait->late_ >= patience_, std::memory_order_relaxed);
  }
}

void WaitWatch::report(const std::string& waits) const {
  say(concat("rank ", world_rank_, " still waits in ", waits, ", ",
             std::chrono::duration<double>(patience_).count(),
             " s after its deadline, which is a fault of Tessera; its process ", getpid(),
             " is in:\n"));
  write_stacks(STDERR_FILENO);
  if (!ends_process_) return;
  say(concat("error: [wait] rank ", world_rank_, " ends: it waited in ", waits,
             " beyond its deadline; please report the stacks above\n"));
  std::_Exit(1);
}

}  // namespace tessera
