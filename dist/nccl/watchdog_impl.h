// SPDX-License-Identifier: Apache-2.0
// NcclWatchdog: a thread of a rank that looks at its groups of GPUs while the rank computes, or
// waits for its device: it puts a deadline on operations that nobody waits for, and ends a device's
// wait for a rank that has failed.
#pragma once

#include <memory>
#include <thread>

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

  void add(NcclGroup* group);
  /// Returns when the thread does not look at the group any more.
  void remove(NcclGroup* group);

 private:
  struct Groups;
  static void run(const std::shared_ptr<Groups>& groups);

  std::shared_ptr<Groups> groups_;
  std::thread thread_;
};

}  // namespace tessera
