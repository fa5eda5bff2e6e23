// SPDX-License-Identifier: Apache-2.0
// It looks ten times a second, which costs nothing beside deadlines of minutes. It holds no lock of
// its own while it looks: that takes the rank's lock, and may end what the rank no longer has.
#include "tessera/dist/lock/mutex_impl.h"
#include "tessera/dist/nccl/group_impl.h"
#include "tessera/dist/nccl/watchdog_impl.h"

#include <algorithm>
#include <condition_variable>

namespace tessera {
namespace {

constexpr auto kPeriod = std::chrono::milliseconds(100);

struct WatchdogOfRank {
  std::shared_ptr<NcclWatchdog> watchdog = std::make_shared<NcclWatchdog>();
};

}  // namespace

struct NcclWatchdog::Groups {
  Mutex mutex;
  std::condition_variable_any change;
  std::vector<NcclGroup*> list;
  NcclGroup* looked_at = nullptr;
  bool stop = false;
};

std::shared_ptr<NcclWatchdog> NcclWatchdog::of_rank() {
  return Context::current().state<WatchdogOfRank>().watchdog;
}

NcclWatchdog::NcclWatchdog()
    : groups_(std::make_shared<Groups>()), thread_([groups = groups_] { run(groups); }) {}

NcclWatchdog::~NcclWatchdog() {
  {
    const std::lock_guard guard(groups_->mutex);
    groups_->stop = true;
  }
  groups_->change.notify_all();
  // The last group may go on the thread itself, with the last work of a rank that has ended.
  if (thread_.get_id() == std::this_thread::get_id()) thread_.detach();
  else thread_.join();
}

void NcclWatchdog::add(NcclGroup* group) {
  const std::lock_guard guard(groups_->mutex);
  groups_->list.push_back(group);
  groups_->change.notify_all();
}

void NcclWatchdog::remove(NcclGroup* group) {
  expect_no_lock("a group of GPUs is removed from its watchdog");
  std::unique_lock guard(groups_->mutex);
  std::erase(groups_->list, group);
  groups_->change.wait(guard, [&] { return groups_->looked_at != group; });
}

void NcclWatchdog::run(const std::shared_ptr<Groups>& groups) {
  std::unique_lock guard(groups->mutex);
  while (!groups->stop) {
    if (groups->list.empty()) groups->change.wait(guard);
    else groups->change.wait_for(guard, kPeriod);
    for (size_t i = 0; i < groups->list.size() && !groups->stop; ++i) {
      NcclGroup* const group = groups->looked_at = groups->list[i];
      guard.unlock();
      std::vector<Ref<Work>> kept = group->watch();
      guard.lock();
      groups->looked_at = nullptr;
      groups->change.notify_all();
      guard.unlock();
      kept.clear();  // the last work of a group, and so the group, may go here
      guard.lock();
    }
  }
}

}  // namespace tessera
