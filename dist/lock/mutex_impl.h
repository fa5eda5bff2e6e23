// SPDX-License-Identifier: Apache-2.0
// Mutex: the lock of all of dist/. In builds that check locks (without NDEBUG, or with
// TESSERA_CHECK_LOCKS: the presets dev, asan-ubsan and tsan) it knows its holder, and a fault of
// this library ends the process with a line on stderr: a thread that takes a lock twice, or that
// waits, ends work or calls code of others while it holds one. Such code may come back for the
// lock, on this thread or on one that this thread waits for.
#pragma once

#include "tessera/core/api.h"

#include <atomic>
#include <mutex>
#include <thread>

namespace tessera {

#if !defined(NDEBUG) || defined(TESSERA_CHECK_LOCKS)
inline constexpr bool kChecksLocks = true;
#else
inline constexpr bool kChecksLocks = false;
#endif

namespace detail {
/// Number of locks that the calling thread holds, in builds that check.
TESSERA_API int& locks_held() noexcept;
[[noreturn]] TESSERA_API void lock_fault(const char* what) noexcept;
}  // namespace detail

template <bool kChecks> class BasicMutex {
 public:
  BasicMutex() = default;
  BasicMutex(const BasicMutex&) = delete;
  BasicMutex& operator=(const BasicMutex&) = delete;

  void lock() {
    expect_other_holder();
    mutex_.lock();
    taken();
  }
  [[nodiscard]] bool try_lock() {
    expect_other_holder();
    if (!mutex_.try_lock()) return false;
    taken();
    return true;
  }
  void unlock() {
    if constexpr (kChecks) {
      holder_.store({}, std::memory_order_relaxed);
      --detail::locks_held();
    }
    mutex_.unlock();
  }

 private:
  void expect_other_holder() const {
    if constexpr (kChecks) {
      if (holder_.load(std::memory_order_relaxed) == std::this_thread::get_id())
        detail::lock_fault("a thread takes a lock that it holds");
    }
  }
  void taken() {
    if constexpr (kChecks) {
      holder_.store(std::this_thread::get_id(), std::memory_order_relaxed);
      ++detail::locks_held();
    }
  }

  std::mutex mutex_;
  std::atomic<std::thread::id> holder_{};
};

using Mutex = BasicMutex<kChecksLocks>;

/// Where this thread must hold no lock of dist/: `what` waits, ends work or calls code of others.
template <bool kChecks = kChecksLocks> void expect_no_lock(const char* what) noexcept {
  if constexpr (kChecks) {
    if (detail::locks_held() > 0) detail::lock_fault(what);
  }
}

}  // namespace tessera
