// SPDX-License-Identifier: Apache-2.0
// NcclWatchdog: a thread of a rank that looks at its groups of GPUs while the rank computes, or
// waits for its device: it puts a deadline on operations that nobody waits for, and ends a device's
// wait for a rank that has failed.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera {

class NcclGroup;

class NcclWatchdog {
 public:
  /// The rank's; made on first use, and kept by its groups and its Context.
  static std::shared_ptr<NcclWatchdog> of_rank();
  NcclWatchdog();
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  /// Both without the rank's lock: the thread takes it while it holds its own.
  void add(NcclGroup* group);
  void remove(NcclGroup* group);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable change_;
  std::vector<NcclGroup*> groups_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tessera
