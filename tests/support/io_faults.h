// SPDX-License-Identifier: Apache-2.0
// For tests: system calls that fail, are cut short, wait or kill the process. The test program
// defines write, fsync, rename and mkdir itself (io_faults_test.cpp), so the calls of the library
// and of the C++ runtime pass here; what is not armed goes on to the system.
#pragma once

#include <atomic>
#include <cstdint>

namespace tessera::test {

enum class IoFault : uint8_t { io_error, no_space, short_write, kill };

/// Of the process, since system calls are. Counts calls while it is armed.
struct IoFaults {
  std::atomic<bool> armed{false};
  std::atomic<int64_t> calls{0};
  std::atomic<int64_t> at{-1};     ///< the call that fails, from 0
  std::atomic<bool> stays{false};  ///< all calls after it fail too
  std::atomic<IoFault> fault{IoFault::io_error};
  /// While it is set, the rename of a rank's data file waits.
  std::atomic<bool> hold{false};
  std::atomic<int> held{0};  ///< renames that waited or wait

  static IoFaults& get() {
    static IoFaults faults;
    return faults;
  }
  void arm(IoFault f, int64_t call, bool then_all) {
    fault = f;
    at = call;
    stays = then_all;
    calls = 0;
    armed = true;
  }
  /// Calls counted.
  int64_t disarm() {
    armed = false;
    return calls;
  }
};

}  // namespace tessera::test
