// SPDX-License-Identifier: Apache-2.0
// Saves whose system calls fail: at each call in turn, on one rank or from there on. Every rank
// ends with an error or none does, and what is named `step-N` is whole.
#include "tessera/tests/support/io_faults.h"

#include "tessera/dist/launch/run.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

namespace {

using tessera::test::IoFault;
using tessera::test::IoFaults;

// A process started with TESSERA_TEST_KILL_AT=n dies at call n after its first one in a save, of
// TESSERA_TEST_KILL_SIGNAL if there is one; it goes on if it handles the signal.
const char*& kill_at() {
  static const char* at = std::getenv("TESSERA_TEST_KILL_AT");
  return at;
}

int kill_signal() {
  const char* number = std::getenv("TESSERA_TEST_KILL_SIGNAL");
  return number ? std::atoi(number) : SIGKILL;
}

void arm_in_a_save(std::string_view path) {
  if (path.find(".partial") != std::string_view::npos)
    if (!IoFaults::get().armed) IoFaults::get().arm(IoFault::kill, std::atoll(kill_at()), true);
}

// A process started with TESSERA_TEST_HOLD=file holds data files while there is such a file.
bool is_held() {
  static const char* file = std::getenv("TESSERA_TEST_HOLD");
  return IoFaults::get().hold || (file && ::access(file, F_OK) == 0);
}

std::string path_of(int fd) {
  std::string path(4096, '\0');
  const auto link = tessera::concat("/proc/self/fd/", fd);
  path.resize(static_cast<size_t>(
      std::max<ssize_t>(0, ::readlink(link.c_str(), path.data(), path.size()))));
  return path;
}

// Whether this call is to fail; errno is then set.
bool fails() {
  IoFaults& f = IoFaults::get();
  if (!f.armed) return false;
  const int64_t call = f.calls++;
  if (call != f.at && !(f.stays && call > f.at && f.at >= 0)) return false;
  if (f.fault == IoFault::kill) {
    std::raise(kill_signal());
    kill_at() = nullptr;
    (void)f.disarm();
    return false;
  }
  errno = f.fault == IoFault::no_space ? ENOSPC : EIO;
  return true;
}

}  // namespace

#pragma GCC visibility push(default)  // for the C++ runtime too
extern "C" {

ssize_t write(int fd, const void* bytes, size_t n) {
  constexpr int kStandard = 2;  // files have higher numbers
  if (fd > kStandard && kill_at()) arm_in_a_save(path_of(fd));
  if (fd > kStandard && fails()) {
    if (IoFaults::get().fault != IoFault::short_write) return -1;
    n = (n + 1) / 2;
  }
  return syscall(SYS_write, fd, bytes, n);
}

int fsync(int fd) {
  if (fails() && IoFaults::get().fault != IoFault::short_write) return -1;
  return static_cast<int>(syscall(SYS_fsync, fd));
}

int rename(const char* from, const char* to) noexcept {
  IoFaults& f = IoFaults::get();
  if (std::string_view(to).find("/rank-") != std::string_view::npos && is_held()) {
    ++f.held;
    while (is_held()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (fails() && f.fault != IoFault::short_write) return -1;
  return static_cast<int>(syscall(SYS_rename, from, to));
}

int mkdir(const char* path, mode_t mode) noexcept {
  if (kill_at()) arm_in_a_save(path);
  if (fails() && IoFaults::get().fault != IoFault::short_write) return -1;
  return static_cast<int>(syscall(SYS_mkdir, path, mode));
}

}  // extern "C"
#pragma GCC visibility pop

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

class IoFaultsTest : public test::FolderTest {
 protected:
  static constexpr int kRanks = 3;
  [[nodiscard]] CheckpointFolder steps() const { return CheckpointFolder(folder_ + "/steps"); }
  // The errors of the ranks; empty texts: it was saved.
  std::vector<std::string> save_step(int64_t step) const {
    std::vector<std::string> errors(kRanks);
    run_ranks(kRanks, [&](World& world) {
      const Mesh mesh = Mesh::make({{"dp", kRanks}});
      const Layout rows = Layout::of(mesh, {Shard(0)}), all = Layout::of(mesh, {Replicate()});
      const Checkpoint c{
          .progress = {step, step, step, step},
          .model = {{"w", full({7, 3}, static_cast<double>(step), DType::f32, rows)},
                    {"b", full({5}, static_cast<double>(step), DType::f32, all)}},
          .optimizer = {{"w.m", full({7, 3}, -static_cast<double>(step), DType::f32, rows)}}};
      try {
        save(steps(), c);
      } catch (const IoError& error) {
        errors[static_cast<size_t>(world.rank())] = error.what();
      }
    });
    return errors;
  }
  void expect_whole(int64_t step) const {
    const Session session;
    const CheckpointReader reader(steps().folder_of(step));
    for (const double v : reader.read("w").values()) EXPECT_EQ(v, static_cast<double>(step));
    for (const double v : reader.read("w.m").values()) EXPECT_EQ(v, -static_cast<double>(step));
  }
};

TEST_F(IoFaultsTest, ASaveSucceedsOrFailsOnAllRanks) {
  const int64_t stride = test::long_form() ? 1 : 9;
  ASSERT_EQ(save_step(1), std::vector<std::string>(kRanks));
  IoFaults& faults = IoFaults::get();
  faults.arm(IoFault::io_error, -1, false);
  (void)save_step(2);
  const int64_t calls = faults.disarm();
  EXPECT_GT(calls, 20);
  int failed = 0, saved = 0;
  for (const IoFault fault : {IoFault::io_error, IoFault::no_space, IoFault::short_write}) {
    for (const bool stays : {false, true}) {
      for (int64_t at = static_cast<int64_t>(fault) + (stays ? 3 : 0); at < calls; at += stride) {
        SCOPED_TRACE(concat("fault ", static_cast<int>(fault), stays ? " from call " : " at call ",
                            at, " of ", calls));
        fs::remove_all(steps().folder_of(2));
        faults.arm(fault, at, stays);
        const auto errors = save_step(2);
        faults.disarm();
        const auto with = std::ranges::count_if(errors, [](const auto& e) { return !e.empty(); });
        EXPECT_TRUE(with == 0 || with == kRanks) << with << " of " << kRanks << " ranks failed";
        (with == 0 ? saved : failed)++;
        expect_whole(1);
        const auto there = steps().steps();
        if (with == 0 || std::ranges::count(there, 2)) expect_whole(2);
        // The disk works again: nothing is in the way.
        if (with > 0) {
          steps().recover();
          EXPECT_EQ(save_step(2), std::vector<std::string>(kRanks));
          expect_whole(2);
        }
      }
    }
  }
  EXPECT_GT(failed, 0);
  EXPECT_GT(saved, 0);
  std::cout << calls << " calls per save; " << failed << " saves failed on all ranks, " << saved
            << " succeeded\n";
}

}  // namespace
}  // namespace tessera::train
