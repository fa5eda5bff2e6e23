// SPDX-License-Identifier: Apache-2.0
// Each thread is asked by a signal, one after another, and writes the addresses of its own stack.
#include "tessera/core/error.h"
#include "tessera/dist/lock/mutex_impl.h"
#include "tessera/dist/process_group/stacks_impl.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <execinfo.h>
#include <filesystem>
#include <fstream>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

namespace tessera {
namespace {

// What the signal handler fills, for one thread at a time.
struct Answer {
  std::array<void*, 64> frames{};
  int count = 0;
  std::atomic<bool> here{false};
};
Answer& answer() {
  static Answer one;
  return one;
}
Mutex& one_at_a_time() {
  static Mutex mutex;
  return mutex;
}

void on_signal(int) {
  const int before = errno;
  Answer& a = answer();
  if (!a.here.load(std::memory_order_acquire)) {
    a.count = backtrace(a.frames.data(), static_cast<int>(a.frames.size()));
    a.here.store(true, std::memory_order_release);
  }
  errno = before;
}

void say(int fd, const std::string& line) { (void)!write(fd, line.data(), line.size()); }

void write_stack_of(pid_t thread, int fd) {
  std::ifstream file(concat("/proc/self/task/", thread, "/comm"));
  std::string name;
  std::getline(file, name);
  say(fd, concat("thread ", thread, " (", name, "):\n"));
  Answer& a = answer();
  a.here.store(false, std::memory_order_release);
  if (syscall(SYS_tgkill, getpid(), thread, SIGURG) != 0) return;
  for (int i = 0; i < 200 && !a.here.load(std::memory_order_acquire); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (a.here.exchange(true, std::memory_order_acq_rel))
    backtrace_symbols_fd(a.frames.data(), a.count, fd);
  else say(fd, "does not answer\n");
}

}  // namespace

void write_stacks(int fd) noexcept {
  try {
    const std::lock_guard guard(one_at_a_time());
    std::array<void*, 4> first{};
    (void)backtrace(first.data(), 4);  // loads what it needs, which a handler must not
    (void)answer();
    struct sigaction action = {}, before = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGURG, &action, &before);
    const auto self = static_cast<pid_t>(syscall(SYS_gettid));
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      const auto thread = static_cast<pid_t>(std::atoi(entry.path().filename().c_str()));
      if (thread != self) write_stack_of(thread, fd);
    }
    sigaction(SIGURG, &before, nullptr);
  } catch (const std::exception&) {  // what could be written has been
  }
}

}  // namespace tessera
