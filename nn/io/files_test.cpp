// SPDX-License-Identifier: Apache-2.0
// What may lie at a path instead of a file: links, FIFOs, devices, folders. None may make a read
// wait for ever, and no write may reach a file that a link points to. And where no folder can be
// made.
#include "tessera/nn/io/files.h"

#include "tessera/nn/io/new_folder.h"
#include "tessera/nn/io/safetensors.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/tests/support/long_form.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <thread>

namespace tessera::io {
namespace {

namespace fs = std::filesystem;

class FilesTest : public test::FolderTest {
 protected:
  [[nodiscard]] std::string path(std::string_view name) const { return concat(folder_, '/', name); }
  [[nodiscard]] std::string fifo(std::string_view name) const {
    EXPECT_EQ(::mkfifo(path(name).c_str(), 0600), 0);
    return path(name);
  }
  static std::string error_of(const std::function<void()>& f) {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
};

TEST_F(FilesTest, ALockDoesNotFollowALink) {
  const std::string victim = put("victim", "precious");
  fs::create_symlink(victim, path(".lock"));
  EXPECT_EQ(error_of([&] { const FolderLock lock(folder_, "dump_folder"); }),
            "[file] " + path(".lock") + " is a symbolic link to " + victim +
                ", which is not followed; remove it");
  fs::remove(path(".lock"));
  fs::create_symlink(path("new"), path(".lock"));
  EXPECT_NE(error_of([&] { const FolderLock lock(folder_, "dump_folder"); }), "no error");
  EXPECT_FALSE(fs::exists(path("new")));
  EXPECT_EQ(read_file(victim), "precious");
}

TEST_F(FilesTest, ALockIsAFileOfItsOwn) {
  const std::string victim = put("victim", "precious");
  fs::create_hard_link(victim, path(".lock"));
  const std::string error = "[file] " + path(".lock") + " is not a lock that a run made; remove it";
  EXPECT_EQ(error_of([&] { const FolderLock lock(folder_, "dump_folder"); }), error);
  EXPECT_EQ(read_file(victim), "precious");
  fs::remove(path(".lock"));
  (void)fifo(".lock");
  EXPECT_EQ(error_of([&] { const FolderLock lock(folder_, "dump_folder"); }), error);
}

TEST_F(FilesTest, AnAtomicWriteDoesNotFollowALink) {
  const std::string victim = put("victim", "precious");
  fs::create_symlink(victim, path("file"));
  fs::create_symlink(victim, concat(path("file"), ".tmp.", ::getpid()));
  write_file_atomically(path("file"), "mine");
  EXPECT_EQ(read_file(victim), "precious");
  EXPECT_EQ(read_file(path("file")), "mine");
  EXPECT_FALSE(fs::is_symlink(path("file")));
}

TEST_F(FilesTest, AppendingDoesNotFollowALink) {
  fs::create_symlink(put("victim", "precious"), path("file"));
  EXPECT_NE(error_of([&] { (void)open_to_append(path("file")); }).find("is a symbolic link to "),
            std::string::npos);
}

TEST_F(FilesTest, OnlyFilesAreOpened) {
  const auto error = [](const std::string& at) {
    return error_of([&] { ::close(open_file(at, "data")); });
  };
  EXPECT_EQ(error(put("file", "")), "no error");
  EXPECT_EQ(error(fifo("fifo")), "[data] " + path("fifo") + " is a FIFO, expected a file");
  EXPECT_EQ(error(folder_), "[data] " + folder_ + " is a folder, expected a file");
  EXPECT_EQ(error("/dev/zero"), "[data] /dev/zero is a device, expected a file");
  EXPECT_EQ(error_of([&] { const SafetensorsFile file(path("fifo")); }),
            "[safetensors] " + path("fifo") + " is a FIFO, expected a file");
  EXPECT_EQ(error_of([&] { (void)sum_of_file(path("fifo")); }),
            "[file] " + path("fifo") + " is a FIFO, expected a file");
  EXPECT_EQ(error_of([&] { (void)read_file("/dev/zero"); }),
            "[file] /dev/zero is a device, expected a file");
}

TEST_F(FilesTest, ABoundedReadTakesAPipeThatHasAWriter) {
  constexpr size_t kMost = 1000;
  const std::string pipe = fifo("fifo");
  EXPECT_EQ(error_of([&] { (void)read_file(pipe, kMost); }),
            "[file] " + pipe + " is a FIFO that nobody writes to; give a file");
  EXPECT_EQ(error_of([&] { (void)read_file("/dev/zero", kMost); }),
            "[file] /dev/zero holds more than 1000 bytes");
  const int ends = ::open(pipe.c_str(), O_RDWR | O_CLOEXEC);
  std::jthread writer([&] {  // some of it comes while the reader waits
    for (const std::string_view part : {"{\"a\":", " 1}"}) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_EQ(::write(ends, part.data(), part.size()), static_cast<ssize_t>(part.size()));
    }
    ::close(ends);
  });
  EXPECT_EQ(read_file(pipe, kMost), "{\"a\": 1}");
}

TEST_F(FilesTest, ASilentWriterIsNotWaitedForLong) {
  if (!test::long_form()) return;  // it takes ten seconds
  const std::string pipe = fifo("fifo");
  const int ends = ::open(pipe.c_str(), O_RDWR | O_CLOEXEC);
  EXPECT_EQ(error_of([&] { (void)read_file(pipe, 1000); }),
            "[file] " + pipe + " gave nothing for 10 s; give a file");
  ::close(ends);
}

// No folder can be made below a file.
TEST_F(FilesTest, WhatLiesBelowAFileCannotBeMade) {
  const std::string below = put("file", "") + "/below";
  EXPECT_EQ(
      error_of([&] { const FolderLock lock(below, "dump_folder"); }),
      "[dump_folder] cannot write in folder " + below + ": Not a directory; give another folder");
  EXPECT_EQ(error_of([&] { (void)make_folder_of(below + "/new", "out"); }),
            "[out] cannot make the folder " + below + " of " + below + "/new: Not a directory");
  EXPECT_EQ(error_of([&] { unfinished_folder(below + "/new", "out"); }),
            "[out] cannot write in folder " + below + "/new: Not a directory; give another folder");
  EXPECT_EQ(error_of([&] { const NewFolder folder(below + "/new", "out"); }),
            "[out] cannot create " + below + "/new.partial: Not a directory; give another folder");
}

TEST_F(FilesTest, ANewFolderHasANameOfItsOwnThatNothingElseHas) {
  EXPECT_EQ(error_of([&] { (void)new_folder_path(path("none/.."), "out"); }),
            "[out] " + path("none/..") + " has no name of its own; give the name of a new folder");
  const std::string file = put("file", "");
  EXPECT_EQ(error_of([&] { (void)new_folder_path(file + "/", "out"); }),
            "[out] " + file + " exists already; remove it or give another name");
  EXPECT_EQ(error_of([&] { unfinished_folder(file, "out"); }),
            "[out] " + file +
                " is no folder, but is written in before it gets its name; remove it or give "
                "another name");
  fs::create_directory_symlink(folder_, path("link"));
  EXPECT_EQ(error_of([&] { unfinished_folder(path("link"), "out"); }),
            "[out] " + path("link") +
                " is a symbolic link, but is written in before it gets its name; remove it or give "
                "another name");
  unfinished_folder(path("new"), "out");
  unfinished_folder(path("new"), "out");
  EXPECT_TRUE(fs::is_directory(path("new")));
}

}  // namespace
}  // namespace tessera::io
