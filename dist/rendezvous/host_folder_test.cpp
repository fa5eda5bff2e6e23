// SPDX-License-Identifier: Apache-2.0
#include "tessera/core/error.h"
#include "tessera/dist/rendezvous/host_folder_impl.h"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera {
namespace {

class HostFolderTest : public testing::Test {
 protected:
  HostFolderTest() : folder_(testing::TempDir() + concat("host_folder.", ::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~HostFolderTest() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] HostFolder of(int local_rank, int first = 0, int size = 3) const {
    return HostFolder({.path = folder_,
                       .rank = first + local_rank,
                       .size = size,
                       .local_rank = local_rank,
                       .local_size = 3});
  }

  std::string folder_;
};

// A process that comes as this rank and stays; its id.
pid_t come_and_stay(const HostFolder& folder) {
  int ends[2];
  if (::pipe(ends) != 0) return -1;
  const pid_t child = ::fork();
  if (child == 0) {
    folder.come();
    (void)!::write(ends[1], "x", 1);
    for (;;) ::pause();
  }
  char byte = 0;
  (void)!::read(ends[0], &byte, 1);
  ::close(ends[0]);
  ::close(ends[1]);
  return child;
}

TEST_F(HostFolderTest, SaysWhoCame) {
  of(0).come();
  EXPECT_EQ(of(0).who_came(), "here: rank 0; not here: rank 1, rank 2");
  const pid_t child = come_and_stay(of(2));
  EXPECT_EQ(of(0).who_came(), "here: rank 0, rank 2; not here: rank 1");
  ::kill(child, SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  EXPECT_EQ(of(0).who_came(), "here: rank 0, rank 2 (stopped); not here: rank 1");
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(of(0).who_came(), "here: rank 0; not here: rank 1, rank 2 (it has ended)");
}

// Numbers of ranks of a host are not known before they come, where there are others.
TEST_F(HostFolderTest, OfSeveralHosts) {
  of(1, 4, 8).come();
  EXPECT_EQ(of(1, 4, 8).who_came(),
            "here: rank 5; not here: local rank 0, local rank 2; "
            "unknown: 5 ranks of other hosts");
  EXPECT_EQ(HostFolder({.path = "", .rank = 1, .size = 3}).who_came(),
            "here: rank 1; unknown: the other 2, since the launcher gives the ranks of a host no "
            "folder");
}

TEST_F(HostFolderTest, ATextIsSaidOncePerCommand) {
  std::string said;
  const auto say = [&](int rank, std::string_view text) {
    of(rank).say_once(text, [&] { said += concat(rank, text, ' '); });
  };
  for (const int rank : {1, 0, 2}) say(rank, "a");
  say(2, "b");
  EXPECT_EQ(said, "1a 2b ");
  for (const int rank : {0, 2, 1}) say(rank, "a");  // the job's next command
  EXPECT_EQ(said, "1a 2b 0a ");
  HostFolder({.path = ""}).say_once("a", [&] { said += "alone"; });
  EXPECT_EQ(said, "1a 2b 0a alone");
}

}  // namespace
}  // namespace tessera
