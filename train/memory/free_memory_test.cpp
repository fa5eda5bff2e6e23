// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/memory/free_memory.h"

#include "tessera/tests/support/folder_test.h"

namespace tessera::train {
namespace {

constexpr int64_t kMiB = 1 << 20;

// The files that free_memory reads, below a folder.
class FreeMemoryTest : public test::FolderTest {
 protected:
  void put_machine(int64_t available_mib) const {
    (void)put("proc/meminfo", concat("MemTotal: 999999999 kB\nMemFree:  1 kB\nMemAvailable:   ",
                                     available_mib * 1024, " kB\n"));
  }
  void put_group(const std::string& group, const std::string& limit, int64_t usage) const {
    (void)put("sys/fs/cgroup/" + group + "/memory.max", limit + "\n");
    (void)put("sys/fs/cgroup/" + group + "/memory.current", concat(usage, "\n"));
  }
  [[nodiscard]] FreeMemory free() const { return free_memory(folder_); }
};

TEST_F(FreeMemoryTest, IsUnknownWithoutFiles) {
  EXPECT_EQ(free().host, FreeMemory::kUnknown);
  EXPECT_EQ(free().process, FreeMemory::kUnknown);
}

TEST_F(FreeMemoryTest, IsWhatTheMachineHasAvailable) {
  put_machine(300);
  EXPECT_EQ(free().host, 300 * kMiB);
  EXPECT_EQ(free().host_source, "the memory available on this machine");
}

TEST_F(FreeMemoryTest, IsTheLeastOfTheGroupAndAllAboveIt) {
  put_machine(300);
  (void)put("proc/self/cgroup", "0::/slice/job\n");
  put_group("slice", std::to_string(200 * kMiB), 150 * kMiB);
  put_group("slice/job", "max", 40 * kMiB);
  EXPECT_EQ(free().host, 50 * kMiB);
  EXPECT_EQ(free().host_source, "a cgroup limit of 200.0 MiB");
  put_group("slice/job", std::to_string(60 * kMiB), 40 * kMiB);
  EXPECT_EQ(free().host, 20 * kMiB);
  // A file cache can be dropped; other kinds of memory cannot.
  (void)put("sys/fs/cgroup/slice/job/memory.stat",
            concat("anon 99\ninactive_file ", 5 * kMiB, "\nactive_file ", 6 * kMiB, "\n"));
  EXPECT_EQ(free().host, 31 * kMiB);
}

TEST_F(FreeMemoryTest, ReadsGroupsOfVersion1AndTheRootOfAContainer) {
  put_machine(300);
  (void)put("proc/self/cgroup", "12:pids:/x\n5:cpu,memory:/docker/abc\n0::/\n");
  const std::string group = "sys/fs/cgroup/memory/";  // a container sees its own at the root
  (void)put(group + "memory.limit_in_bytes", concat(100 * kMiB));
  (void)put(group + "memory.usage_in_bytes", concat(90 * kMiB));
  (void)put(group + "memory.stat",
            concat("inactive_file 1\ntotal_inactive_file ", 7 * kMiB, "\ntotal_active_file 0\n"));
  EXPECT_EQ(free().host, 17 * kMiB);
  (void)put(group + "memory.limit_in_bytes", "9223372036854771712");  // no limit
  EXPECT_EQ(free().host, 300 * kMiB);
}

TEST_F(FreeMemoryTest, UnreadableFilesLimitNothing) {
  put_machine(300);
  (void)put("proc/self/cgroup", "nonsense\n0::\n0::/../..\n:::::\n0::/job");
  put_group("job", "many", 1);
  EXPECT_EQ(free().host, 300 * kMiB);
  put_group("job", std::to_string(kMiB), 9 * kMiB);  // above its limit
  EXPECT_EQ(free().host, 0);
}

TEST_F(FreeMemoryTest, TheAddressSpaceIsThatOfTheProcess) {
  (void)put("proc/self/limits",
            concat("Max cpu time  unlimited unlimited seconds\nMax address space         ",
                   64 * kMiB, "  unlimited  bytes\n"));
  (void)put("proc/self/statm", "4096 1 1 1 0 1 0\n");
  EXPECT_EQ(free().process, 64 * kMiB - 4096 * sysconf(_SC_PAGESIZE));
  EXPECT_EQ(free().host, FreeMemory::kUnknown);
  (void)put("proc/self/limits", "Max address space  unlimited  unlimited  bytes\n");
  EXPECT_EQ(free().process, FreeMemory::kUnknown);
}

}  // namespace
}  // namespace tessera::train
