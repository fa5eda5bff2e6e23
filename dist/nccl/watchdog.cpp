// SPDX-License-Identifier: Apache-2.0
// It looks ten times a second, which costs nothing beside deadlines of minutes.
#include "tessera/dist/nccl/nccl_group_impl.h"
#include "tessera/dist/nccl/watchdog_impl.h"

#include <algorithm>

namespace tessera {
namespace {

constexpr auto kPeriod = std::chrono::milliseconds(100);

struct WatchdogOfRank {
  std::shared_ptr<NcclWatchdog> watchdog = std::make_shared<NcclWatchdog>();
};

}  // namespace

std::shared_ptr<NcclWatchdog> NcclWatchdog::of_rank() {
  return Context::current().state<WatchdogOfRank>().watchdog;
}

NcclWatchdog::NcclWatchdog() : thread_([this] { run(); }) {}

NcclWatchdog::~NcclWatchdog() {
  {
    const std::lock_guard guard(mutex_);
    stop_ = true;
  }
  change_.notify_all();
  thread_.join();
}

void NcclWatchdog::add(NcclGroup* group) {
  const std::lock_guard guard(mutex_);
  groups_.push_back(group);
  change_.notify_all();
}

void NcclWatchdog::remove(NcclGroup* group) {
  const std::lock_guard guard(mutex_);
  std::erase(groups_, group);
}

void NcclWatchdog::run() {
  std::unique_lock guard(mutex_);
  while (!stop_) {
    if (groups_.empty()) change_.wait(guard);
    else change_.wait_for(guard, kPeriod);
    for (size_t i = 0; i < groups_.size() && !stop_; ++i) groups_[i]->watch();
  }
}

}  // namespace tessera
