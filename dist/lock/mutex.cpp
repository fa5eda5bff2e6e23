// SPDX-License-Identifier: Apache-2.0
#include "tessera/dist/lock/mutex_impl.h"

#include <cstdio>
#include <cstdlib>

namespace tessera::detail {

// Of a thread, not of a rank: progress threads and watchdogs hold locks too.
int& locks_held() noexcept {
  thread_local int held = 0;
  return held;
}

void lock_fault(const char* what) noexcept {
  std::fprintf(stderr, "[lock] %s, while it holds a lock of dist/\n", what);
  std::abort();
}

}  // namespace tessera::detail
